// A worker server that a cluster has started. It gets its settings on standard input, reports on standard output, and
// ends when its input ends. launch_protocol.hpp has the grammar.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "miniray/value.hpp"
#include "miniray/worker_server.hpp"

namespace miniray {

struct StdioProgram {
  struct Setup {
    const Value& program;                            ///< ServerProgram::setup of the cluster
    std::map<std::string, std::string> environment;  ///< the variables that the cluster added to this process
  };
  /// Called when the code has arrived in `folder` (empty: no code came) and the environment is set. If it throws, the
  /// launch of this node fails, and the cluster shows the text of the exception.
  std::function<void(const std::filesystem::path& folder, const Setup& setup)> prepare = {};
  WorkerServerOptions server = {};
  /// Functions that every server of a cluster has, by name. `server.find_work` is not called for these names.
  std::map<std::string, WorkFunction> own_functions = {};
};

/// Serves until the input ends or the cluster is silent for too long. Returns the exit code for the process.
int serve_stdio(StdioProgram program);

}  // namespace miniray
