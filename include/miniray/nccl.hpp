// The settings with which the processes of a group find each other in torch.distributed and NCCL, one for each process:
//
//   auto configs = miniray::create_nccl_configs("10.0.0.1", {{"node1", 4}, {"node2", 4}});
//   workers[i].send(configs[i]);                               // in the coordinator
//   miniray::setup_nccl_env(miniray::nccl_config(handle.recv()));  // in the worker
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "miniray/export.hpp"
#include "miniray/limits.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

struct NCCLConfig {
  std::string master_addr;                ///< the address of rank 0's node, which every other rank can reach
  int master_port = limits::master_port;  ///< a free port on that node
  int world_size = 1;
  int rank = 0;
  int local_rank = 0;          ///< the number of this rank among those on the same node
  std::string interface = {};  ///< the network interface for Gloo, if Gloo would choose a wrong one

  /// Returns the config as a message.
  operator Value() const;  // NOLINT(google-explicit-constructor): a config is sent like any other value
  bool operator==(const NCCLConfig&) const = default;
};

/// Throws UsageError if a field is out of range; the text has the value, and what is allowed.
void check_nccl_config(const NCCLConfig& config);
/// Reads a config from a message. Throws UsageError if the message holds no valid config.
[[nodiscard]] NCCLConfig nccl_config(const Value& message);

/// Returns one config for each process. `nodes` are pairs of a name and a number of processes; ranks follow their
/// order. Rank 0 is the first process of the first node, whose address is `master_addr`. Throws UsageError.
[[nodiscard]] std::vector<NCCLConfig> create_nccl_configs(const std::string& master_addr,
                                                          const std::vector<std::pair<std::string, int>>& nodes,
                                                          int master_port = limits::master_port);

/// The earlier values of variables; nullopt for a variable that was not set.
using OldEnvironment = std::map<std::string, std::optional<std::string>>;
/// Sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK of this process, and GLOO_SOCKET_IFNAME if the config
/// names an interface and the variable is not set. Returns the values before. Like setenv, it is not safe while other
/// threads read the environment.
OldEnvironment setup_nccl_env(const NCCLConfig& config);
/// Sets the variables back to what setup_nccl_env() returned.
void restore_nccl_env(const OldEnvironment& before);

/// Prints describe() to standard output.
void print_nccl_config(const NCCLConfig& config);
/// Returns "rank 5 of 8 (local rank 1), master 10.0.0.1:29500".
[[nodiscard]] std::string describe(const NCCLConfig& config);
/// Returns the variables that setup_nccl_env() sets, and their values.
[[nodiscard]] std::map<std::string, std::string> nccl_env(const NCCLConfig& config);

}  // namespace miniray
