// Lets a C++ program run as the worker server of its own nodes, and as the attendant of its own clusters. program.cpp
// has init().
#pragma once

#include <string>
#include <vector>

#include "miniray/launch.hpp"

namespace miniray {

/// Returns this program as the one to run on the nodes. Throws UsageError if it did not call init().
[[nodiscard]] ServerProgram this_program();
/// Returns the command that runs this program as an attendant. Throws UsageError if it did not call init().
[[nodiscard]] std::vector<std::string> this_programs_attendant();

/// Whether this process is a node's worker server, or a worker of it: main() went no further than init().
[[nodiscard]] bool runs_inside_init();

}  // namespace miniray
