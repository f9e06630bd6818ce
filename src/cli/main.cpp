// The miniray command as a C++ program.
#include "cli/command.hpp"
#include "cli/subcommands.hpp"
#include "miniray/cluster.hpp"

int main(int argc, char** argv) {
  miniray::init(argc, argv);
  miniray::cli::CommandContext context;
  context.add_more_subcommands = miniray::cli::add_worker_server;
  return miniray::cli::run_command({argv + 1, argv + argc}, context);
}
