// The subcommands of `miniray`. Each adds itself to the command line, and returns an exit code when it was chosen.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.hpp"
#include "miniray/handle.hpp"

namespace miniray::cli {

void add_doctor(CLI::App& app, const Surroundings& surroundings, int& exit_code);
void add_limits(CLI::App& app);
void add_worker_server(CLI::App& app);

/// The Python command runs a server of its own, and shows it under the same name.
inline constexpr const char* worker_server_description =
    "Start a worker for every connection that has the key (MINIRAY_KEY, or ~/.miniray/key)";

/// The function that "./library.so:function" names.
[[nodiscard]] WorkFunction find_in_library(const std::string& name);

}  // namespace miniray::cli
