// A C++ program as its own worker server on the nodes.
#pragma once

#include "miniray/cluster.hpp"

namespace miniray {

/// What runs on the nodes if nothing else was said: this program. Throws UsageError if it did not call init().
[[nodiscard]] ServerProgram this_program();

}  // namespace miniray
