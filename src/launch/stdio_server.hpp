// A worker server that a cluster started: it is told what to do on its standard input, says how it goes on its standard
// output, and ends when the input does. launch_protocol.hpp has the words.
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
    const Value& program;                            ///< what the cluster's own language sent along
    std::map<std::string, std::string> environment;  ///< what was added to this process's
  };
  /// The code has arrived in this folder (empty: none came), and the environment is set. What it throws is told to the
  /// cluster.
  std::function<void(const std::filesystem::path& folder, const Setup& setup)> prepare = {};
  WorkerServerOptions server = {};
  /// What every server of a cluster can run, by name. `server.find_work` is not asked for these.
  std::map<std::string, WorkFunction> own_functions = {};
};

/// Returns the process's exit code.
int serve_stdio(StdioProgram program);

}  // namespace miniray
