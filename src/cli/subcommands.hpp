// The subcommands of `miniray`. Each function adds one to the command line; the parser runs it if the user chose it.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.hpp"
#include "miniray/handle.hpp"

namespace miniray::cli {

/// `exit_code` is set when the subcommand runs, and must outlive the parsing.
void add_doctor(CLI::App& app, const CommandContext& context, int& exit_code);
void add_limits(CLI::App& app);
void add_worker_server(CLI::App& app);

/// The Python package has a worker-server of its own, and describes it with the same text.
inline constexpr const char* worker_server_description =
    "Start a worker for every connection that has the key (MINIRAY_KEY, or ~/.miniray/key)";

/// Returns a sentence that says who can connect to a server that listens at `host`, in both languages.
[[nodiscard]] std::string who_can_connect(const std::string& host);

/// Returns the function that "./library.so:function" names. Throws UsageError if there is none.
[[nodiscard]] WorkFunction find_in_library(const std::string& name);

}  // namespace miniray::cli
