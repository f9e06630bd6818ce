// `miniray limits`: what the limits are, so that nobody has to look for them in the source.
#include "miniray/limits.hpp"

#include <cstdio>
#include <string>

#include "cli/subcommands.hpp"

namespace miniray::cli {
namespace {

struct Row {
  const char* name;
  std::uint64_t value;
  const char* meaning;
};

constexpr Row rows[] = {
    {"message_bytes_max", limits::message_bytes_max, "a larger message is refused before anything is allocated"},
    {"body_bytes_max", limits::body_bytes_max, "of that, everything but arrays, long bytes and long lists of numbers"},
    {"buffers_max", limits::buffers_max, "arrays in one message"},
    {"depth_max", limits::depth_max, "lists and maps inside each other"},
    {"inbox_bytes_max", limits::inbox_bytes_max, "received and not yet asked for, in one channel"},
    {"shared_buffer_bytes_min", limits::shared_buffer_bytes_min, "smaller arrays go through the socket"},
    {"shared_memory_bytes_max", limits::shared_memory_bytes_max, "shared memory for each direction of a channel"},
    {"spin_us", limits::spin_us, "a wait spins so long before it sleeps (MINIRAY_SPIN_US)"},
    {"close_grace_ms", limits::close_grace_ms, "a worker that was told to end has so long before it is killed"},
    {"idle_grace_ms", limits::idle_grace_ms, "at Ctrl-C, a worker that still runs after so long is interrupted"},
    {"interrupt_memory_ms", limits::interrupt_memory_ms, "what is dropped so soon after Ctrl-C is not waited for"},
    {"interrupt_grace_ms", limits::interrupt_grace_ms, "a worker that was interrupted has so long before it is killed"},
    {"unreachable_ms", limits::unreachable_ms, "a host that does not answer for so long is taken to be gone"},
    {"connect_timeout_ms", limits::connect_timeout_ms, "to reach a server and be let in"},
    {"hello_timeout_ms", limits::hello_timeout_ms, "a server waits so long for a connection to prove itself"},
    {"newcomers_max", limits::newcomers_max, "connections to a server that have not proved themselves"},
    {"start_timeout_ms", limits::start_timeout_ms, "to bring up all nodes of a cluster, imports included"},
    {"code_bytes_max", limits::code_bytes_max, "the code that goes along to a node"},
    {"code_files_max", limits::code_files_max, "and its files"},
    {"orphan_grace_ms", limits::orphan_grace_ms, "a worker whose coordinator is gone has so long to end by itself"},
};

void print_limits(bool json) {
  std::string text = json ? "{" : "";
  for (const Row& row : rows) {
    if (json)
      text += (text.size() > 1 ? ", \"" : "\"") + std::string(row.name) + "\": " + std::to_string(row.value);
    else
      std::printf("%-25s %14llu  %s\n", row.name, static_cast<unsigned long long>(row.value), row.meaning);
  }
  if (json) std::printf("%s}\n", text.c_str());
}

}  // namespace

void add_limits(CLI::App& app) {
  CLI::App* command = app.add_subcommand("limits", "Print the limits and time-outs");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "One JSON object, for programs");
  command->callback([json] { print_limits(*json); });
}

}  // namespace miniray::cli
