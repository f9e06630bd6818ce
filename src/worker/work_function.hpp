// Runs a work function in its process and tells the coordinator how it ended.
#pragma once

#include <string>

#include "miniray/handle.hpp"

namespace miniray {

/// Thrown out of a work function by a language binding: the function raised, and this is what.
struct WorkFailure {
  std::string type, message, traceback;
};
/// Thrown out of a work function by a language binding: the function asked the process to exit.
struct WorkExit {
  int code;
};

/// Returns the process's exit code.
int run_work_function(const WorkFunction& work, Channel channel);

/// Ties this process to its coordinator, who will read in the crash file if this process crashes.
void become_worker(int lifeline, int crash_file);

}  // namespace miniray
