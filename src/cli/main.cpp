// The miniray command: parses, calls, prints.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "cli/subcommands.hpp"
#include "miniray/error.hpp"
#include "miniray/version.hpp"

int main(int argc, char** argv) {
  CLI::App app("Functions in other processes, and plain messages to them.", "miniray");
  app.set_version_flag("--version", std::string("miniray ") + miniray::version);
  app.require_subcommand(1);
  miniray::cli::add_limits(app);
  miniray::cli::add_worker_server(app);
  try {
    CLI11_PARSE(app, argc, argv);
  } catch (const miniray::Error& error) {
    std::fprintf(stderr, "miniray: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
