#include "miniray/nccl.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

void check_range(const char* name, int given, int least, int most, const std::string& why = {}) {
  if (given >= least && given <= most) return;
  throw UsageError(std::string(name) + " is a number from " + std::to_string(least) + " to " + std::to_string(most) +
                   why + ", not " + std::to_string(given));
}

void check_address(const std::string& address) {
  const auto refuse = [&](const std::string& hint) {
    throw UsageError("master_addr is the name or the address of rank 0's node, such as 10.0.0.1, not \"" + address +
                     "\"" + hint);
  };
  if (address.empty()) refuse("");
  if (address.find("://") != std::string::npos) refuse("; leave out the scheme");
  if (address.front() == '[') refuse("; leave out the brackets");
  if (std::ranges::any_of(address, [](unsigned char c) { return c <= ' ' || c == '/' || c == '@' || c == 0x7F; }))
    refuse("");
  if (std::ranges::count(address, ':') == 1) refuse("; the port goes into master_port");
}

int small_integer(const Value& message, const char* name) {
  const std::int64_t given = message[name].integer();
  if (given < INT32_MIN || given > INT32_MAX)
    throw UsageError(std::string(name) + " is out of range: " + std::to_string(given));
  return static_cast<int>(given);
}

}  // namespace

void check_nccl_config(const NCCLConfig& config) {
  check_address(config.master_addr);
  check_range("master_port", config.master_port, 1, 65535);
  check_range("world_size", config.world_size, 1, limits::world_size_max);
  const std::string beside = " (world_size is " + std::to_string(config.world_size) + ")";
  check_range("rank", config.rank, 0, config.world_size - 1, beside);
  check_range("local_rank", config.local_rank, 0, config.world_size - 1, beside);
  if (config.interface.find_first_of(std::string_view(" /\n\0", 4)) != std::string::npos)
    throw UsageError("interface is the name of a network interface, such as eth0, not \"" + config.interface + "\"");
}

NCCLConfig::operator Value() const {
  Map fields{{"master_addr", master_addr},
             {"master_port", master_port},
             {"world_size", world_size},
             {"rank", rank},
             {"local_rank", local_rank}};
  if (!interface.empty()) fields.emplace_back("interface", interface);
  return Value(std::move(fields));
}

NCCLConfig nccl_config(const Value& message) {
  NCCLConfig config{message["master_addr"].string(), small_integer(message, "master_port"),
                    small_integer(message, "world_size"), small_integer(message, "rank"),
                    small_integer(message, "local_rank")};
  if (const Value* interface = message.find("interface")) config.interface = interface->string();
  check_nccl_config(config);
  return config;
}

std::vector<NCCLConfig> create_nccl_configs(const std::string& master_addr,
                                            const std::vector<std::pair<std::string, int>>& nodes, int master_port) {
  if (nodes.empty()) throw UsageError("nodes is empty; it is a list of at least one (name, number of processes)");
  std::int64_t world_size = 0;
  for (const auto& [name, processes] : nodes) {
    if (processes < 1)
      throw UsageError("each node needs at least one process, and " + name + " has " + std::to_string(processes));
    world_size += processes;
  }
  // The sum may not fit an int; then any number that is too large will do for the error.
  check_range("world_size", static_cast<int>(std::min<std::int64_t>(world_size, INT32_MAX)), 1, limits::world_size_max);
  std::vector<NCCLConfig> configs;
  for (const auto& [name, processes] : nodes) {
    for (int local_rank = 0; local_rank < processes; ++local_rank)
      configs.push_back(
          {master_addr, master_port, static_cast<int>(world_size), static_cast<int>(configs.size()), local_rank});
  }
  check_nccl_config(configs.front());
  return configs;
}

std::map<std::string, std::string> nccl_env(const NCCLConfig& config) {
  check_nccl_config(config);
  std::map<std::string, std::string> variables{{"MASTER_ADDR", config.master_addr},
                                               {"MASTER_PORT", std::to_string(config.master_port)},
                                               {"WORLD_SIZE", std::to_string(config.world_size)},
                                               {"RANK", std::to_string(config.rank)},
                                               {"LOCAL_RANK", std::to_string(config.local_rank)}};
  // What the user has chosen is kept.
  if (!config.interface.empty() && std::getenv("GLOO_SOCKET_IFNAME") == nullptr)
    variables["GLOO_SOCKET_IFNAME"] = config.interface;
  return variables;
}

OldEnvironment setup_nccl_env(const NCCLConfig& config) {
  OldEnvironment before;
  // nccl_env() checks the config before any variable is set.
  for (const auto& [name, value] : nccl_env(config)) {
    const char* old = std::getenv(name.c_str());
    before[name] = old != nullptr ? std::optional<std::string>(old) : std::nullopt;
    system::set_environment(name, value);
  }
  return before;
}

void restore_nccl_env(const OldEnvironment& before) {
  for (const auto& [name, value] : before) {
    if (value)
      system::set_environment(name, *value);
    else
      system::remove_from_environment(name);
  }
}

std::string describe(const NCCLConfig& config) {
  const bool bracketed = config.master_addr.find(':') != std::string::npos;
  return "rank " + std::to_string(config.rank) + " of " + std::to_string(config.world_size) + " (local rank " +
         std::to_string(config.local_rank) + "), master " + (bracketed ? "[" : "") + config.master_addr +
         (bracketed ? "]" : "") + ":" + std::to_string(config.master_port) +
         (config.interface.empty() ? "" : ", Gloo through " + config.interface);
}

void print_nccl_config(const NCCLConfig& config) { std::printf("%s\n", describe(config).c_str()); }

}  // namespace miniray
