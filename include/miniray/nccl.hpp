// What torch.distributed and NCCL need to know to find each other, for each process of a group:
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

#include "miniray/limits.hpp"
#include "miniray/value.hpp"

namespace miniray {

struct NCCLConfig {
  std::string master_addr;                ///< where rank 0 is, as every other rank can reach it
  int master_port = limits::master_port;  ///< a free one there
  int world_size = 1;
  int rank = 0;
  int local_rank = 0;          ///< among the ranks of this node
  std::string interface = {};  ///< Gloo's network interface, where it would choose a wrong one

  /// As a message.
  operator Value() const;  // NOLINT(google-explicit-constructor): a config is sent like any other value
  bool operator==(const NCCLConfig&) const = default;
};

/// Throws UsageError: what was given, and what is allowed.
void check_nccl_config(const NCCLConfig& config);
/// From a message.
[[nodiscard]] NCCLConfig nccl_config(const Value& message);

/// One for each process, in the order of the nodes; rank 0 is the first of the first node, which has master_addr.
[[nodiscard]] std::vector<NCCLConfig> create_nccl_configs(const std::string& master_addr,
                                                          const std::vector<std::pair<std::string, int>>& nodes,
                                                          int master_port = limits::master_port);

/// Variables as they were; none where one was not set.
using OldEnvironment = std::map<std::string, std::optional<std::string>>;
/// Sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK of this process, and GLOO_SOCKET_IFNAME if the config
/// names an interface and the variable is not set. Returns what they were before.
OldEnvironment setup_nccl_env(const NCCLConfig& config);
void restore_nccl_env(const OldEnvironment& before);

/// On standard output: "rank 5 of 8 (local rank 1), master 10.0.0.1:29500".
void print_nccl_config(const NCCLConfig& config);
[[nodiscard]] std::string describe(const NCCLConfig& config);
/// The variables that setup_nccl_env sets, and their values.
[[nodiscard]] std::map<std::string, std::string> nccl_env(const NCCLConfig& config);

}  // namespace miniray
