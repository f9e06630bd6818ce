// A probe on each of several nodes of a cluster, asked one by one or all at once; and whether the nodes reach each
// other over TCP.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/error.hpp"

namespace miniray {

/// A probe that does not answer: its node is gone, or does not get on.
class ProbeLost : public Error {
 public:
  ProbeLost(std::size_t lost_node, const std::string& text) : Error(text), node(lost_node) {}
  std::size_t node;
};

class NodeProbes {
 public:
  /// On these nodes of the cluster, by which they are known here too; by default all.
  explicit NodeProbes(Cluster& cluster, std::vector<std::size_t> nodes = {});

  [[nodiscard]] const std::string& name(std::size_t node) const { return servers_[node].node; }
  [[nodiscard]] Value ask(std::size_t node, const Value& order);
  /// By node.
  [[nodiscard]] std::map<std::size_t, Value> ask_all(const Value& order);
  /// What each said of itself; asked for once.
  [[nodiscard]] const Value& facts(std::size_t node);
  /// Whether the two are on one machine, and so at each other's loopback address.
  [[nodiscard]] bool same_machine(std::size_t one, std::size_t other);
  /// The addresses by which others may reach a node, the likeliest first.
  [[nodiscard]] std::vector<std::string> addresses(std::size_t node);
  /// The network interface that has an address of the node; empty if none has.
  [[nodiscard]] std::string interface_of(std::size_t node, const std::string& address);

  /// Where a node listens, by one of its addresses.
  struct Door {
    std::size_t node;
    std::string host;
    int port;
  };
  struct Attempt {
    std::size_t from;
    Door door;
    std::string outcome;  ///< empty: the right node answered
  };
  /// Each of these nodes dials all doors of the others, all at once.
  [[nodiscard]] std::vector<Attempt> dial(const std::vector<std::size_t>& from, const std::vector<Door>& doors);

  /// The same from this process.
  [[nodiscard]] std::vector<Attempt> dial_from_here(const std::vector<Door>& doors,
                                                    const std::function<void()>& on_interrupt);

 private:
  void tell(std::size_t node, const Value& order);
  [[nodiscard]] Value hear(std::size_t node, double timeout_s);
  [[nodiscard]] Value as_order(const Door& door);

  std::vector<Cluster::Server> servers_;
  std::map<std::size_t, Worker> probes_;
  std::map<std::size_t, Value> facts_;
};

/// "10.0.0.1:29500: no answer, so a firewall drops it".
[[nodiscard]] std::string describe(const NodeProbes::Attempt& attempt);

}  // namespace miniray
