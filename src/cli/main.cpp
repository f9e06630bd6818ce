// The miniray command: parses, calls, prints.
#include <CLI/CLI.hpp>

#include "cli/subcommands.hpp"
#include "miniray/version.hpp"

int main(int argc, char** argv) {
  CLI::App app("Functions in other processes, and plain messages to them.", "miniray");
  app.set_version_flag("--version", std::string("miniray ") + miniray::version);
  app.require_subcommand(1);
  miniray::cli::add_limits(app);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
