// Nodes on their way from a command to a server that is ready, all at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cluster/attendant.hpp"
#include "cluster/node_launch.hpp"
#include "miniray/cluster.hpp"

namespace miniray {

struct BringUpOptions {
  double timeout_s;
  const char* timeout_name;  // what the caller sets to change it
  int unreachable_ms;
  bool progress;
  std::function<void()> on_interrupt;
};

/// Waits until each is ready or has failed, and returns what failed. The attendant attends these nodes in this order.
[[nodiscard]] std::vector<ClusterError::Failure> bring_up(Attendant& attendant, std::vector<NodeLaunch>& launches,
                                                          const std::vector<std::string>& names,
                                                          const BringUpOptions& options);

}  // namespace miniray
