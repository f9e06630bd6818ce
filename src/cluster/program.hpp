// A C++ program as its own worker server on the nodes.
#pragma once

#include <string>
#include <vector>

#include "miniray/launch.hpp"

namespace miniray {

/// What runs on the nodes if nothing else was said: this program. Throws UsageError if it did not call init().
[[nodiscard]] ServerProgram this_program();
/// The same for the process that attends a cluster's connections.
[[nodiscard]] std::vector<std::string> this_programs_attendant();

}  // namespace miniray
