#include "cli/command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/network.hpp"
#include "cli/subcommands.hpp"
#include "miniray/error.hpp"
#include "miniray/version.hpp"

namespace miniray::cli {
namespace {

constexpr int usage_error = 2;
constexpr const char* more_help = "miniray COMMAND --help says more about a command.";

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Returns how many letters must be changed, added or removed to turn one word into the other (Levenshtein).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j)
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])}));
  }
  return row.back();
}

// Prints the commands and the one with the most similar name. CLI11 would only say that a subcommand is required.
int refuse_command(const CLI::App& app, const std::string& name) {
  std::string nearest;
  std::size_t best = std::max<std::size_t>(2, name.size() / 2);
  for (const CLI::App* command : subcommands_of(app))
    if (const std::size_t letters = distance(name, command->get_name()); letters <= best)
      best = letters, nearest = command->get_name();
  std::fprintf(stderr, "miniray: there is no command \"%s\"%s The commands are:\n", name.c_str(),
               nearest.empty() ? "." : ("; did you mean " + nearest + "?").c_str());
  for (const CLI::App* command : subcommands_of(app))
    std::fprintf(stderr, "  %-15s %s\n", command->get_name().c_str(), command->get_description().c_str());
  std::fprintf(stderr, "%s\n", more_help);
  return usage_error;
}

}  // namespace

std::string who_can_connect(const std::string& host) {
  if (network::is_path(host)) return "Only processes on this machine that may open the socket can connect.";
  if (host.empty() || network::is_loopback(network::resolve(host, 0).front().host()))
    return "Only processes on this machine can connect. With --host 0.0.0.0, other machines can too.";
  return "Every machine that can reach this one can connect; those that have the key run code here as this user.";
}

int run_command(const std::vector<std::string>& arguments, const CommandContext& context) {
  CLI::App app("Functions in other processes, and plain messages to them.", "miniray");
  app.set_version_flag("--version", std::string("miniray ") + version);
  app.require_subcommand(1);
  int exit_code = EXIT_SUCCESS;
  add_doctor(app, context, exit_code);
  add_limits(app);
  if (context.add_more_subcommands) context.add_more_subcommands(app);
  app.footer(more_help);
  if (arguments.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return usage_error;
  }
  const bool is_known = std::ranges::any_of(
      subcommands_of(app), [&](const CLI::App* command) { return command->get_name() == arguments[0]; });
  if (!arguments[0].starts_with('-') && !is_known) return refuse_command(app, arguments[0]);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them from the back
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == EXIT_SUCCESS ? EXIT_SUCCESS : usage_error;
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
