#include "cluster/node_config.hpp"

#include <set>

#include "cluster/gpu_plan.hpp"
#include "miniray/error.hpp"

namespace miniray {

void check(const NodeConfig& node) {
  if (node.host.empty() || node.host.front() == '-')
    throw UsageError("a node's host is a name or an address, not \"" + node.host + "\"");
  if (node.num_workers < 1)
    throw UsageError(node.host + ": num_workers is 1 or more, not " + std::to_string(node.num_workers));
  if (node.base_port < 0 || node.base_port > 65535)
    throw UsageError(node.host + ": base_port is from 0 (any that is free) to 65535, not " +
                     std::to_string(node.base_port));
  check_gpus_per_worker(node.gpus_per_worker, node.host);
}

std::vector<std::string> node_names(const std::vector<NodeConfig>& nodes) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::string name = nodes[i].host;
    if (taken.contains(name) && nodes[i].base_port > 0) name += ":" + std::to_string(nodes[i].base_port);
    if (taken.contains(name)) name = nodes[i].host + "#" + std::to_string(i);
    taken.insert(name);
    names.push_back(name);
  }
  return names;
}

}  // namespace miniray
