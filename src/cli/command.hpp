// The miniray command, for the programs that are it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace miniray::cli {

/// What a subcommand may need of the program that runs it.
struct Surroundings {
  std::string python = "python3";           ///< the interpreter on the nodes, if it is there
  std::vector<std::string> attendant = {};  ///< see ClusterOptions
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
  std::function<void(CLI::App&)> add_more_subcommands = {};
};

/// Parses, calls, prints. Returns the exit code.
int run_command(const std::vector<std::string>& arguments, const Surroundings& surroundings);

}  // namespace miniray::cli
