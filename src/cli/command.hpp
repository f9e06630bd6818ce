// The miniray command line, for the programs that run it: the C++ command and the Python package.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace miniray::cli {

/// What the subcommands need to know of the program that runs them.
struct CommandContext {
  std::string python = "python3";           ///< the interpreter to use on nodes that have it
  std::vector<std::string> attendant = {};  ///< see ClusterOptions
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
  std::function<void(CLI::App&)> add_more_subcommands = {};
};

/// Parses the arguments and runs the subcommand that they name. Prints errors to standard error. Returns the exit code.
int run_command(const std::vector<std::string>& arguments, const CommandContext& context);

}  // namespace miniray::cli
