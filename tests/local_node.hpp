// A node that is this machine, for the tests of clusters.
#pragma once

#include "miniray/cluster.hpp"

namespace miniray {

inline NodeConfig local(int workers) { return {.host = "localhost", .num_workers = workers, .base_port = 0}; }

}  // namespace miniray
