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

// Opens a port that no other group of this cluster has got. If there is none, it tries the ports of other groups, which
// may have ended.
int open_master_port(Cluster& cluster, NodeProbes& probes, std::size_t node, int first_port) {
  std::string last_error = "other groups use all of them";
  const int end = std::min(first_port + limits::master_ports_tried, 65536);
  for (const bool given_too : {false, true}) {
    for (int port = first_port; port < end; ++port) {
      if (cluster.ports_given().contains(port) != given_too) continue;
      const Value answer = probes.ask(node, {{"cmd", "listen"}, {"port", port}});
      if (answer.find("port") != nullptr) return port;
      last_error = std::to_string(port) + " " + answer["error"].string();
    }
  }
  throw UsageError("there is no free port on " + probes.name(node) + " from " + std::to_string(first_port) + " to " +
                   std::to_string(end - 1) + ": " + last_error + ". Set another master_port");
}

NodeProbes start_probes(Cluster& cluster, const std::vector<std::size_t>& nodes) {
  try {
    return NodeProbes(cluster, nodes);
  } catch (const ClusterError& error) {
    std::string text = "the group cannot start, because some of its nodes do not answer:";
    for (const ClusterError::Failure& failure : error.failures()) text += "\n  " + failure.node + ": " + failure.why;
    throw GroupError(text);
  }
}

// Returns true if every attempt to reach this endpoint succeeded.
bool is_open(const Attempts& attempts, const NodeProbes::Endpoint& endpoint) {
  return std::ranges::all_of(attempts, [&](const NodeProbes::Attempt& attempt) {
    return attempt.endpoint.node != endpoint.node || attempt.endpoint.host != endpoint.host ||
           attempt.endpoint.port != endpoint.port || attempt.outcome.empty();
  });
}

// Returns the first address at which all other nodes reach this node. If there is none, it throws a GroupError with the
// failed attempts.
std::string common_address(NodeProbes& probes, const Attempts& attempts, std::size_t node, int port,
                           const std::string& purpose) {
  const std::vector<std::string> hosts = probes.addresses(node);
  for (const std::string& host : hosts)
    if (is_open(attempts, {node, host, port})) return host;
  std::string seen;
  for (const NodeProbes::Attempt& attempt : attempts)
    if (attempt.endpoint.node == node && attempt.endpoint.port == port && !attempt.outcome.empty())
      seen += "\n  from " + probes.name(attempt.from) + " to " + describe(attempt);
  if (hosts.empty()) seen = "\n  it has only loopback addresses; `ip address` on the node shows its interfaces";
  throw GroupError("not all nodes can reach " + probes.name(node) + ", " + purpose + ":" + seen +
                   "\nOpen the firewall on " + probes.name(node) +
                   ", e.g. `sudo ufw allow from NODE` or `sudo iptables -I INPUT -s NODE -j ACCEPT` for each of the "
                   "other nodes; `miniray doctor` checks every pair");
}

// By itself, Gloo listens at the address of the host's own name. Returns true if all other nodes reach that address.
bool gloo_finds_address(NodeProbes& probes, const Attempts& attempts, std::size_t node, int port) {
  const Value& facts = probes.facts(node);
  if (!facts["gloo_interface"].is_null()) return true;  // the user has chosen an interface
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
  // Gloo and NCCL also connect ranks to each other on ports that the system chooses, so every node tries every other.
  std::vector<NodeProbes::Endpoint> endpoints;
  std::vector<int> free_ports(point.interfaces.size(), 0);
  for (const std::size_t node : nodes) {
    free_ports[node] = static_cast<int>(probes.ask(node, {{"cmd", "listen"}, {"port", 0}})["port"].integer());
    for (const std::string& host : probes.addresses(node)) {
      endpoints.push_back({node, host, free_ports[node]});
      if (node == master) endpoints.push_back({node, host, point.master_port});
    }
  }
  const Attempts attempts = probes.dial(nodes, endpoints);
  point.master_addr = common_address(probes, attempts, master, point.master_port, "where the group's rank 0 is");
  for (const std::size_t node : nodes) {
    const std::string host = common_address(probes, attempts, node, free_ports[node],
                                            "but NCCL and Gloo connect all nodes, on ports of their own choice");
    if (!gloo_finds_address(probes, attempts, node, free_ports[node]))
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
  } catch (const ProbeFailure& failure) {
    throw GroupError("the node " + probes.name(failure.node) + " failed while the group was set up: " + failure.what());
  }
}

}  // namespace miniray
