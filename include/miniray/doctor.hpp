// check() finds what would make a training run hang or fail, before the run starts. It checks every pair of nodes,
// ports, host names, versions, clocks, GPUs, shared memory and limits. Each finding names the node, the cause and a
// cure.
//
//   miniray::CheckReport report = miniray::check({{"node1"}, {"node2"}});
//   if (!report.healthy()) std::puts(report.text().c_str());
#pragma once

#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/export.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

struct Finding {
  enum class Severity : std::uint8_t {
    problem,  ///< training would hang or fail
    warning,  ///< training may fail, or would be slow
  };
  Severity severity;
  std::string node;   ///< the node's name, or "node1 -> node2" for a connection between two
  std::string check;  ///< start, lost, version, port, reach, name, clock, gpu, memory, limit
  std::string what, cure;
};

struct CheckOptions {
  /// Each of these ports must be free on every node, and every other node must reach it. A port that the system chooses
  /// is checked too, because NCCL and Gloo use such ports.
  std::vector<int> ports = {limits::master_port};
  bool base_ports = true;  ///< check that each node's base_port is free; false if the cluster is running and uses them
  /// A work function that reports the node's versions of Python, torch and NCCL; empty: do not check them.
  std::string language_probe = {};
};

struct CheckReport {
  std::vector<Finding> findings;          ///< problems first, then warnings
  std::vector<Value> nodes;               ///< facts about each node that answered: name, hardware, versions, limits
  std::vector<std::string> failed_nodes;  ///< the names of the nodes that did not answer

  /// Returns true if there is no problem. Warnings do not count.
  [[nodiscard]] bool healthy() const;
  /// Returns the report as text for people.
  [[nodiscard]] std::string text() const;
  /// Returns the report for programs: {"healthy", "findings": [...], "nodes": [...], "failed_nodes": [...]}.
  [[nodiscard]] Value value() const;
};

/// Checks the nodes with a process on each of them, which ends with the check. A node that does not come up is a
/// finding, and the other nodes are checked without it. Throws UsageError if the arguments are not valid.
[[nodiscard]] CheckReport check(const std::vector<NodeConfig>& nodes, const ClusterOptions& options = {},
                                const CheckOptions& what = {});

}  // namespace miniray
