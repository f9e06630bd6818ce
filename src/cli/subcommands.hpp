// The subcommands of `miniray`. Each adds itself to the command line, and returns an exit code when it was chosen.
#pragma once

#include <CLI/CLI.hpp>

namespace miniray::cli {

void add_limits(CLI::App& app);

}  // namespace miniray::cli
