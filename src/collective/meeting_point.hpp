// Finds where the processes of a group meet: an address that all of them can reach, and a free port there. If nodes
// cannot reach each other, torch.distributed would hang; find_meeting_point() throws instead.
#pragma once

#include <string>
#include <vector>

#include "miniray/cluster.hpp"

namespace miniray {

struct MeetingPoint {
  std::string master_addr;
  int master_port;
  /// By node of the cluster: the network interface that Gloo must use; empty where Gloo finds the right one by itself.
  std::vector<std::string> interfaces;
};

/// Returns the meeting point for these nodes of the cluster; rank 0 is on the first one. Tries ports from first_port
/// on. Throws a GroupError that says which node cannot reach which, and the cure; or a UsageError if no port is free.
[[nodiscard]] MeetingPoint find_meeting_point(Cluster& cluster, const std::vector<std::size_t>& nodes, int first_port);

}  // namespace miniray
