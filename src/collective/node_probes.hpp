// A probe on each node of a cluster, asked one by one or all at once; and calls between the nodes.
#pragma once

#include <string>
#include <vector>

#include "miniray/cluster.hpp"

namespace miniray {

class NodeProbes {
 public:
  explicit NodeProbes(Cluster& cluster);

  [[nodiscard]] std::size_t size() const { return probes_.size(); }
  [[nodiscard]] const std::string& name(std::size_t node) const { return servers_[node].node; }
  [[nodiscard]] Value ask(std::size_t node, const Value& order);
  [[nodiscard]] std::vector<Value> ask_all(const Value& order);
  /// What each said of itself; asked for once.
  [[nodiscard]] const Value& facts(std::size_t node);
  /// Whether the two are on one machine, and so at each other's loopback address.
  [[nodiscard]] bool same_machine(std::size_t one, std::size_t other);
  /// The addresses by which others may reach a node, the likeliest first.
  [[nodiscard]] std::vector<std::string> addresses(std::size_t node);

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
  /// Each of these nodes calls all doors of the others, all at once.
  [[nodiscard]] std::vector<Attempt> call(const std::vector<std::size_t>& callers, const std::vector<Door>& doors);

 private:
  std::vector<Cluster::Server> servers_;
  std::vector<Worker> probes_;
  std::vector<Value> facts_;
};

/// "10.0.0.1:29500: no answer, so a firewall drops it".
[[nodiscard]] std::string describe(const NodeProbes::Attempt& attempt);

}  // namespace miniray
