// `miniray limits` prints the limits that users meet, so that they need not search the source.
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
    {"body_bytes_max", limits::body_bytes_max, "a message without its arrays, long bytes and long lists of numbers"},
    {"buffers_max", limits::buffers_max, "arrays in one message"},
    {"depth_max", limits::depth_max, "lists and maps inside each other"},
    {"inbox_bytes_max", limits::inbox_bytes_max, "bytes that a channel has received and the program has not read yet"},
    {"shared_buffer_bytes_min", limits::shared_buffer_bytes_min, "smaller arrays go through the socket"},
    {"shared_memory_bytes_max", limits::shared_memory_bytes_max, "shared memory for each direction of a channel"},
    {"spin_us", limits::spin_us, "the time that a wait spins before it sleeps (MINIRAY_SPIN_US)"},
    {"close_grace_ms", limits::close_grace_ms, "the time for a worker that is closed to end, before it is killed"},
    {"idle_grace_ms", limits::idle_grace_ms, "the time for a worker to end at Ctrl-C, before it is interrupted"},
    {"interrupt_memory_ms", limits::interrupt_memory_ms,
     "workers that are dropped within this time after Ctrl-C are not waited for"},
    {"interrupt_grace_ms", limits::interrupt_grace_ms,
     "the time for a worker that was interrupted to end, before it is killed"},
    {"unreachable_ms", limits::unreachable_ms, "a host that does not answer for this time counts as gone"},
    {"connect_timeout_ms", limits::connect_timeout_ms, "the time to connect to a server and prove the key"},
    {"hello_timeout_ms", limits::hello_timeout_ms, "the time that a server gives a connection to prove the key"},
    {"pending_connections_max", limits::pending_connections_max,
     "connections to a server that have not proved the key yet"},
    {"start_timeout_ms", limits::start_timeout_ms, "the time for all nodes of a cluster to come up, imports included"},
    {"code_bytes_max", limits::code_bytes_max, "the code that a cluster copies to its nodes"},
    {"code_files_max", limits::code_files_max, "the files of that code"},
    {"orphan_grace_ms", limits::orphan_grace_ms,
     "the time for a worker to end by itself when its coordinator is gone, before it is killed"},
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
  command->add_flag("--json", *json, "Print one JSON object, for programs");
  command->callback([json] { print_limits(*json); });
}

}  // namespace miniray::cli
