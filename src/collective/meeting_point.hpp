// Where the processes of a group meet: an address that all of them can reach, and a port that is free there. What would
// make torch.distributed hang is found out here, and said.
#pragma once

#include <string>
#include <vector>

#include "miniray/cluster.hpp"

namespace miniray {

struct MeetingPoint {
  std::string master_addr;
  int master_port;
  /// For each node of the cluster, the interface that Gloo must use; empty where it finds the right one by itself.
  std::vector<std::string> interfaces;
};

/// For these nodes of the cluster; rank 0 is on the first. Throws GroupError: who cannot reach whom, and the cure.
[[nodiscard]] MeetingPoint find_meeting_point(Cluster& cluster, const std::vector<std::size_t>& nodes, int first_port);

}  // namespace miniray
