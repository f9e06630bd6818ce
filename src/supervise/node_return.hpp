// A node whose server cannot be reached: it is launched again, or the node is taken to be lost.
#pragma once

#include <cstddef>
#include <string>

#include "miniray/cluster.hpp"
#include "miniray/event_log.hpp"

namespace miniray {

/// False, and `why` says it, if the node cannot be had now. Both outcomes are in the log.
inline bool bring_back(Cluster& cluster, std::size_t node, ClusterError& why, EventLog& events) {
  const std::string& name = cluster.node_names()[node];
  events.add({.kind = "node_lost", .node = name, .text = why.what()});
  try {
    cluster.relaunch(node);
  } catch (const ClusterError& error) {
    why = error;
    events.add({.kind = "relaunch_failed", .node = name, .text = error.what()});
    return false;
  }
  events.add({.kind = "node_back", .node = name, .text = "its server was launched again"});
  return true;
}

}  // namespace miniray
