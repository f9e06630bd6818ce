// Decides on which node of a cluster a worker is replaced, or a rank started again: on its own node, whose server is
// launched again if it is gone, or on the nodes that are left.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "miniray/group_run.hpp"
#include "miniray/supervised_worker.hpp"

namespace miniray {
namespace {

// Launches the server of a node that cannot be reached. Records in the log that the node was lost, and whether its
// server is back. If the launch failed, returns false and sets `why` to the error.
bool bring_back(Cluster& cluster, std::size_t node, ClusterError& why, EventLog& events) {
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

using Ranks = std::map<std::size_t, std::vector<Worker>>;  // by the node that they were planned for, wherever they run

void add(Ranks& ranks, Cluster& cluster, std::vector<Worker> workers) {
  for (Worker& worker : workers) {
    const std::size_t node = cluster.node_of(worker);
    ranks[node].push_back(std::move(worker));
  }
}

// Launches the server of each node that fails again, once. If the node fails a second time, it is lost.
Ranks connect_where_possible(Cluster& cluster, const std::string& work_fn, StartOptions options, bool other_nodes,
                             EventLog& events) {
  std::set<std::size_t> launched_again;
  std::vector<std::size_t> left = options.nodes;
  while (true) {
    options.nodes = left;
    try {
      Ranks ranks;
      add(ranks, cluster, cluster.connect_to_servers(work_fn, options));
      return ranks;
    } catch (const ClusterError& error) {
      for (const ClusterError::Failure& failure : error.failures()) {
        const std::size_t node = cluster.position_of(failure.node);
        ClusterError why(1, {failure});
        if (launched_again.insert(node).second && bring_back(cluster, node, why, events)) continue;
        std::erase(left, node);
        if (!other_nodes || left.empty()) throw ClusterError(why);
      }
    }
  }
}

}  // namespace

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

std::vector<Worker> connect_again(Cluster& cluster, const std::string& work_fn, const StartOptions& options,
                                  bool other_nodes, EventLog& events) {
  StartOptions chosen = options;
  if (chosen.nodes.empty()) {
    chosen.nodes.resize(cluster.nodes().size());
    std::iota(chosen.nodes.begin(), chosen.nodes.end(), 0);
  }
  Ranks ranks = connect_where_possible(cluster, work_fn, chosen, other_nodes, events);
  std::vector<std::size_t> left;
  for (const auto& [node, workers] : ranks) left.push_back(node);
  std::size_t turn = 0;
  for (const std::size_t node : chosen.nodes) {
    if (std::ranges::find(left, node) != left.end()) continue;
    const int wanted = options.num_workers.value_or(cluster.nodes()[node].num_workers);
    for (int i = 0; i < wanted; ++i) {
      StartOptions one = options;
      one.nodes = {left[turn++ % left.size()]};
      one.num_workers = 1;
      for (Worker& worker : cluster.connect_to_servers(work_fn, one)) ranks[node].push_back(std::move(worker));
    }
    events.add({.kind = "ranks_moved",
                .node = cluster.node_names()[node],
                .text = std::to_string(wanted) + " of its ranks are on the nodes that are left"});
  }
  std::vector<Worker> all;
  for (const std::size_t node : chosen.nodes)
    for (Worker& worker : ranks[node]) all.push_back(std::move(worker));
  return all;
}

}  // namespace miniray
