// What can be said of nodes before any of them is reached.
#pragma once

#include <string>
#include <vector>

#include "miniray/cluster.hpp"

namespace miniray {

/// Throws UsageError, naming the node and the field.
void check(const NodeConfig& node);

/// As people call them; where one host is there twice, with what tells the two apart.
[[nodiscard]] std::vector<std::string> node_names(const std::vector<NodeConfig>& nodes);

}  // namespace miniray
