#include "collective/meeting_point.hpp"

#include <algorithm>
#include <set>

#include "collective/node_probes.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"
#include "miniray/training_group.hpp"

namespace miniray {
namespace {

using Attempts = std::vector<NodeProbes::Attempt>;

// One that no other group of this cluster was given; or if there is none left, one whose group is gone.
int open_master_port(Cluster& cluster, NodeProbes& probes, std::size_t node, int first_port) {
  std::string last_error = "all were given to other groups";
  const int end = std::min(first_port + limits::master_ports_tried, 65536);
  for (const bool given_too : {false, true}) {
    for (int port = first_port; port < end; ++port) {
      if (cluster.ports_given().contains(port) != given_too) continue;
      const Value answer = probes.ask(node, {{"cmd", "listen"}, {"port", port}});
      if (answer.find("port") != nullptr) return port;
      last_error = std::to_string(port) + " " + answer["error"].string();
    }
  }
  throw UsageError("no port from " + std::to_string(first_port) + " on is free on " + probes.name(node) + ": " +
                   last_error);
}

NodeProbes start_probes(Cluster& cluster, const std::vector<std::size_t>& nodes) {
  try {
    return NodeProbes(cluster, nodes);
  } catch (const ClusterError& error) {
    std::string text = "some nodes of the group do not answer:";
    for (const ClusterError::Failure& failure : error.failures()) text += "\n  " + failure.node + ": " + failure.why;
    throw GroupError(text);
  }
}

// All who tried a door came in.
bool is_open(const Attempts& attempts, const NodeProbes::Door& door) {
  return std::ranges::all_of(attempts, [&](const NodeProbes::Attempt& attempt) {
    return attempt.door.node != door.node || attempt.door.host != door.host || attempt.door.port != door.port ||
           attempt.outcome.empty();
  });
}

// The first address of the node at which everybody is let in; else throws, and says what happened to whom.
std::string common_address(NodeProbes& probes, const Attempts& attempts, std::size_t node, int port,
                           const std::string& purpose) {
  const std::vector<std::string> hosts = probes.addresses(node);
  for (const std::string& host : hosts)
    if (is_open(attempts, {node, host, port})) return host;
  std::string seen;
  for (const NodeProbes::Attempt& attempt : attempts)
    if (attempt.door.node == node && attempt.door.port == port && !attempt.outcome.empty())
      seen += "\n  from " + probes.name(attempt.from) + " to " + describe(attempt);
  if (hosts.empty()) seen = "\n  it has no address but its own loopback's; `ip address` there shows what is up";
  throw GroupError("not all nodes can reach " + probes.name(node) + ", " + purpose + ":" + seen + "\nOpen the way on " +
                   probes.name(node) +
                   ", e.g. `sudo ufw allow from NODE` or `sudo iptables -I INPUT -s NODE -j ACCEPT` for each of the "
                   "other nodes; `miniray doctor` checks every pair");
}

// What Gloo would do by itself: listen where the host's own name points to.
bool gloo_finds_its_way(NodeProbes& probes, const Attempts& attempts, std::size_t node, int port) {
  const Value& facts = probes.facts(node);
  if (!facts["gloo_interface"].is_null()) return true;  // as the user says
  const List& meant = facts["host_name_means"].list();
  const std::vector<std::string> hosts = probes.addresses(node);
  return !meant.empty() && std::ranges::find(hosts, meant.front().string()) != hosts.end() &&
         is_open(attempts, {node, meant.front().string(), port});
}

MeetingPoint find_with(NodeProbes& probes, Cluster& cluster, const std::vector<std::size_t>& nodes, int first_port) {
  const std::size_t master = nodes.front();
  MeetingPoint point;
  point.interfaces.resize(cluster.servers().size());
  point.master_port = open_master_port(cluster, probes, master, first_port);
  if (std::ranges::all_of(nodes, [&](std::size_t node) { return probes.same_machine(node, master); })) {
    point.master_addr = "127.0.0.1";
    cluster.ports_given().insert(point.master_port);
    return point;
  }
  // Gloo and NCCL also connect every rank to others on ports of their own choice, so each node tries each.
  std::vector<NodeProbes::Door> doors;
  std::vector<int> free_ports(point.interfaces.size(), 0);
  for (const std::size_t node : nodes) {
    free_ports[node] = static_cast<int>(probes.ask(node, {{"cmd", "listen"}, {"port", 0}})["port"].integer());
    for (const std::string& host : probes.addresses(node)) {
      doors.push_back({node, host, free_ports[node]});
      if (node == master) doors.push_back({node, host, point.master_port});
    }
  }
  const Attempts attempts = probes.dial(nodes, doors);
  point.master_addr =
      common_address(probes, attempts, master, point.master_port, "and it has the group's master (rank 0)");
  for (const std::size_t node : nodes) {
    const std::string host = common_address(probes, attempts, node, free_ports[node],
                                            "and NCCL and Gloo connect nodes on ports of their own choice");
    if (!gloo_finds_its_way(probes, attempts, node, free_ports[node]))
      point.interfaces[node] = probes.interface_of(node, host);
  }
  cluster.ports_given().insert(point.master_port);
  return point;
}

}  // namespace

MeetingPoint find_meeting_point(Cluster& cluster, const std::vector<std::size_t>& nodes, int first_port) {
  NodeProbes probes = start_probes(cluster, nodes);
  try {
    return find_with(probes, cluster, nodes, first_port);
  } catch (const ProbeLost& lost) {
    throw GroupError("the node " + probes.name(lost.node) + " was lost while the group came together: " + lost.what());
  }
}

}  // namespace miniray
