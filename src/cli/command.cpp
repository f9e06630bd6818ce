#include "cli/command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli/subcommands.hpp"
#include "miniray/error.hpp"
#include "miniray/version.hpp"

namespace miniray::cli {
namespace {

constexpr int usage_error = 2;

}  // namespace

int run_command(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  CLI::App app("Functions in other processes, and plain messages to them.", "miniray");
  app.set_version_flag("--version", std::string("miniray ") + version);
  app.require_subcommand(1);
  int exit_code = EXIT_SUCCESS;
  add_doctor(app, surroundings, exit_code);
  add_limits(app);
  if (surroundings.add_more_subcommands) surroundings.add_more_subcommands(app);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as the library wants it
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "miniray: %s\n", error.what());
    return usage_error;
  } catch (const Error& error) {
    std::fprintf(stderr, "miniray: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return exit_code;
}

}  // namespace miniray::cli
