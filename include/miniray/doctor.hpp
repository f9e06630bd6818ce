// Finds what would make a training run hang or fail, before it starts: every pair of nodes, ports, names, versions,
// clocks, GPUs, shared memory and limits. Each finding says what is wrong, where, and the command that cures it.
//
//   miniray::CheckReport report = miniray::check({{"node1"}, {"node2"}});
//   if (!report.healthy()) std::puts(report.text().c_str());
#pragma once

#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/value.hpp"

namespace miniray {

struct Finding {
  enum class Severity : std::uint8_t {
    problem,  ///< training would hang or fail
    warning,  ///< it may, or would be slow
  };
  Severity severity;
  std::string node;   ///< whom it concerns; "node1 -> node2" for the way between two
  std::string check;  ///< start, lost, version, port, reach, name, clock, gpu, memory, limit
  std::string what, cure;
};

struct CheckOptions {
  /// Each must be free on every node, and open to every other; also one that the system chooses, as NCCL and Gloo do.
  std::vector<int> ports = {limits::master_port};
  bool base_ports = true;  ///< the nodes' base_port must be free; not if the cluster is running and has them
  /// A work function that tells of the node's Python, torch and NCCL; empty: there is no Python on the nodes.
  std::string language_probe = {};
};

struct CheckReport {
  std::vector<Finding> findings;  ///< problems first
  std::vector<Value> nodes;       ///< what is known of each that came up: name, hardware, versions, limits
  std::vector<std::string> failed_nodes;

  /// No problems; warnings are no obstacle.
  [[nodiscard]] bool healthy() const;
  /// For people.
  [[nodiscard]] std::string text() const;
  /// For programs: {"healthy", "findings": [...], "nodes": [...]}.
  [[nodiscard]] Value value() const;
};

/// Starts a process on each node for the time of the check; nothing is left. A node that does not come up is a finding,
/// and the others are checked without it.
[[nodiscard]] CheckReport check(const std::vector<NodeConfig>& nodes, const ClusterOptions& options = {},
                                const CheckOptions& what = {});

}  // namespace miniray
