// Where in a cluster the replacement of a worker goes: to its own node if that can be had, else to another.
#include <optional>

#include "miniray/supervised_worker.hpp"
#include "supervise/node_return.hpp"

namespace miniray {

Worker replace_in_cluster(Cluster& cluster, Worker& worker, std::size_t home, bool other_nodes, EventLog& events) {
  std::optional<ClusterError> why;
  try {
    return cluster.replace(worker, home);
  } catch (const ClusterError& error) {
    why = error;
  }
  if (bring_back(cluster, home, *why, events)) return cluster.replace(worker, home);
  if (!other_nodes) throw ClusterError(*why);
  for (std::size_t node = 0; node < cluster.nodes().size(); ++node) {
    if (node == home) continue;
    try {
      return cluster.replace(worker, node);
    } catch (const ClusterError& error) {
      why = error;
    }
  }
  throw ClusterError(*why);
}

}  // namespace miniray
