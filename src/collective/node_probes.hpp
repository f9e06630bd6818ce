// NodeProbes runs a probe (cluster/probe.hpp) on each of several nodes of a cluster. It asks one or all of them, and
// tests whether the nodes reach each other over TCP.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/error.hpp"

namespace miniray {

/// Thrown when a probe does not answer: its node has died or hangs.
class ProbeFailure : public Error {
 public:
  ProbeFailure(std::size_t failed_node, const std::string& text) : Error(text), node(failed_node) {}
  std::size_t node;
};

class NodeProbes {
 public:
  /// Starts probes on these nodes of the cluster (default: all). All calls name a node by its position in the cluster.
  /// Throws ClusterError if a probe does not start. The other calls throw ProbeFailure.
  explicit NodeProbes(Cluster& cluster, std::vector<std::size_t> nodes = {});

  [[nodiscard]] const std::string& name(std::size_t node) const { return servers_[node].node; }
  /// Sends an order to one probe and returns the answer.
  [[nodiscard]] Value ask(std::size_t node, const Value& order);
  /// Sends an order to all probes at once and returns the answers by node.
  [[nodiscard]] std::map<std::size_t, Value> ask_all(const Value& order);
  /// Returns the facts about a node. The first call asks all probes for them.
  [[nodiscard]] const Value& facts(std::size_t node);
  /// Returns true if the two nodes are on one machine, so that each reaches the other at the loopback address.
  [[nodiscard]] bool same_machine(std::size_t one, std::size_t other);
  /// Returns the addresses of the node without loopback ones; the address at which ssh reached it comes first.
  [[nodiscard]] std::vector<std::string> addresses(std::size_t node);
  /// Returns the name of the node's network interface that has this address; empty if none has.
  [[nodiscard]] std::string interface_of(std::size_t node, const std::string& address);

  /// A port on which a node listens, at one of its addresses.
  struct Endpoint {
    std::size_t node;
    std::string host;
    int port;
  };
  struct Attempt {
    std::size_t from;
    Endpoint endpoint;
    std::string outcome;  ///< see Dial::outcome(); empty: the right node answered
  };
  /// Lets each of these nodes connect to all endpoints that are not on its own machine, at the same time. Returns every
  /// attempt with its outcome.
  [[nodiscard]] std::vector<Attempt> dial(const std::vector<std::size_t>& from, const std::vector<Endpoint>& endpoints);

  /// Connects to all endpoints from this process. In the result, `from` is the endpoint's own node.
  [[nodiscard]] std::vector<Attempt> dial_from_here(const std::vector<Endpoint>& endpoints,
                                                    const std::function<void()>& on_interrupt);

 private:
  void send_order(std::size_t node, const Value& order);
  [[nodiscard]] Value receive_answer(std::size_t node, double timeout_s);
  [[nodiscard]] Value as_target(const Endpoint& endpoint);

  std::vector<Cluster::Server> servers_;
  std::map<std::size_t, Worker> probes_;
  std::map<std::size_t, Value> facts_;
};

/// Returns the attempt's address and outcome as text for people: "10.0.0.1:29500: no answer in 3 s: a firewall ...".
[[nodiscard]] std::string describe(const NodeProbes::Attempt& attempt);

}  // namespace miniray
