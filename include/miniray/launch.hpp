// The types that describe how a cluster (cluster.hpp) is launched: its nodes, the program that runs on them and the
// options; and what a launch results in: servers, or a ClusterError.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "miniray/error.hpp"
#include "miniray/export.hpp"
#include "miniray/limits.hpp"
#include "miniray/remote_worker.hpp"
#include "miniray/seconds.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

/// One machine of a cluster, and the workers to start on it.
struct NodeConfig {
  std::string host;  ///< the name that you give to ssh; "localhost" is reached without ssh
  int num_workers = 4;
  int base_port = 10000;  ///< the port on which the node's server listens; 0: any free port
  /// Worker i sees only the GPUs i*n to i*n+n-1 of the node, and runs on the CPUs next to them. A share such as 0.5
  /// puts two workers on each GPU. With 0, each worker sees all GPUs. On a node without GPUs this has no effect.
  double gpus_per_worker = 0;
  std::string ssh_key = {};                     ///< the path of a private key; empty: the keys that ssh finds by itself
  std::string python_bin = {};                  ///< the interpreter on the node, for work functions in Python
  std::map<std::string, std::string> env = {};  ///< variables that are added to the environment of the node's server
  std::string workdir = {};                     ///< the workers' folder; empty: the folder in which ssh logs in
};

/// A file that is copied to the nodes.
struct ShippedFile {
  std::string path;    ///< its relative path in the code folder on a node
  std::string source;  ///< its path on this machine
};

/// The program that runs on the nodes as their worker server. The default is this program, which must call init(). The
/// languages may differ: a C++ coordinator may have Python workers, and a Python coordinator C++ workers.
struct ServerProgram {
  /// Returns the command line that the shell of this node runs.
  std::function<std::string(const NodeConfig& node)> command = {};
  std::string executable = {};  ///< a file that is copied to the node first; "$program" in `command` is its path
  std::vector<ShippedFile> files = {};  ///< code that is copied into one folder on each node
  /// Returns a Python server, for work functions in Python. A node uses its python_bin; without one, `interpreter` if
  /// that file exists on the node; else python3.
  static ServerProgram python(const std::string& interpreter = "/usr/bin/python3");
  /// Returns another C++ program, which must call init(). Throws UsageError if `path` is not an executable file.
  static ServerProgram cpp(const std::string& path);

  Value setup = {};  ///< passed to the program unchanged; its meaning is the program's own
};

struct ClusterOptions {
  bool ship_code = true;  ///< copy program and files to the nodes; false: the nodes have them already
  bool tunnel = false;    ///< carry all traffic inside the ssh connections, so that no port is opened on the nodes
  /// False sends what goes to the nodes unencrypted, which is for networks that you trust; see RemoteOptions.
  std::optional<bool> encrypt = {};
  std::string output = {};  ///< a folder with one file for what each worker prints; empty: standard output shows it
  bool progress = true;     ///< print to standard error which nodes are not up yet
  Seconds start_timeout_s = limits::start_timeout_ms / 1000.0;  ///< the time for all nodes to come up, imports included
  Seconds unreachable_s = limits::unreachable_ms / 1000.0;      ///< see RemoteOptions
  ServerProgram program = {};
  /// The command line of the process that attends the ssh connections. Only language bindings set it; the default is
  /// this program.
  std::vector<std::string> attendant = {};
  WorkerOptions worker = {};  ///< for all workers; used are codec, spin_us, the limits and on_interrupt
};

/// A worker server that is running on a node.
struct LaunchedServer {
  std::string node, host;
  int port;
  std::int64_t pid;
  std::string address = {};  ///< the address at which ssh reached the node, tried if `host` does not lead there
};

/// Thrown when some nodes failed to start their server or workers. Nothing of that start is left running on any node.
class ClusterError : public Error {
 public:
  struct Failure {
    std::string node, why;
  };
  /// `nodes` is how many nodes were to start.
  ClusterError(std::size_t nodes, std::vector<Failure> failures);
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }

 private:
  std::vector<Failure> failures_;
};

}  // namespace miniray
