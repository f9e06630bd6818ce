// Runs a work function in the worker's process, and tells the coordinator how it ended.
#pragma once

#include <string>

#include "miniray/handle.hpp"

namespace miniray {

/// A language binding throws this out of a work function that raised an exception.
struct WorkFailure {
  std::string type, message, traceback;
};
/// A language binding throws this out of a work function that asked the process to exit.
struct WorkExit {
  int code;
};

/// Runs the function and sends its end or its failure to the coordinator. Returns the process's exit code.
int run_work_function(const WorkFunction& work, Channel channel);

/// Ties this process to its coordinator: it ends with the coordinator, and writes its stack to the crash file if it
/// crashes.
void become_worker(int lifeline, int crash_file);

}  // namespace miniray
