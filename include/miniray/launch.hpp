// What a cluster is launched with: its nodes, the program that runs on them, and how they are reached; and what is
// known of a server that is up, or of nodes that did not come up. cluster.hpp uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "miniray/error.hpp"
#include "miniray/limits.hpp"
#include "miniray/remote_worker.hpp"
#include "miniray/value.hpp"

namespace miniray {

struct NodeConfig {
  std::string host;  ///< as ssh knows it; "localhost" needs no ssh
  int num_workers = 4;
  int base_port = 10000;  ///< where the node's server listens; 0: any port that is free
  /// Worker i sees GPUs i*n to i*n+n-1 of the node as its own, and runs on the CPUs next to them. A share such as 0.5
  /// puts two workers on each GPU; 0: each sees all. On a node without GPUs it changes nothing.
  double gpus_per_worker = 0;
  std::string ssh_key = {};     ///< a file; empty: what ssh finds by itself
  std::string python_bin = {};  ///< the interpreter there, for work functions in Python
  std::map<std::string, std::string> env = {};
  std::string workdir = {};  ///< empty: where ssh logs in
};

/// A file that goes along to the nodes: where it is here, and its path in the folder there.
struct ShippedFile {
  std::string path, source;
};

/// What runs on the nodes. By default this program, if it called init(). The two languages mix: a C++ coordinator may
/// have Python workers, and the other way round.
struct ServerProgram {
  /// The command line on a node, for its shell.
  std::function<std::string(const NodeConfig& node)> command = {};
  std::string executable = {};          ///< to be copied there first, and put in place of "$program" in the command
  std::vector<ShippedFile> files = {};  ///< code that goes into a folder there
  /// A Python server, for work functions in Python. The interpreter is the node's python_bin, or this path if it is
  /// there, or python3.
  static ServerProgram python(const std::string& interpreter = "/usr/bin/python3");
  /// Another C++ program that calls init().
  static ServerProgram cpp(const std::string& path);

  Value setup = {};  ///< for the program, as it likes it
};

struct ClusterOptions {
  bool ship_code = true;    ///< false: the nodes have the code already
  bool tunnel = false;      ///< everything inside the ssh connections; no port is open on the nodes
  std::string output = {};  ///< a folder: what workers print goes there, a file each; empty: to standard output
  bool progress = true;     ///< say on standard error which nodes are still missing
  double start_timeout_s = limits::start_timeout_ms / 1000.0;
  double unreachable_s = limits::unreachable_ms / 1000.0;  ///< see RemoteOptions
  ServerProgram program = {};
  /// For language bindings: the command line of the process that attends the connections. By default this program.
  std::vector<std::string> attendant = {};
  WorkerOptions worker = {};  ///< of all workers: codec, spin_us, inbox_bytes_max, on_interrupt
};

/// A worker server that is up on a node.
struct LaunchedServer {
  std::string node, host;
  int port;
  std::int64_t pid;
  std::string address = {};  ///< where ssh arrived there, if that may be another than the host's
};

/// Some nodes did not come up. Nothing was left running on any.
class ClusterError : public Error {
 public:
  struct Failure {
    std::string node, why;
  };
  ClusterError(std::size_t nodes, std::vector<Failure> failures);
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }

 private:
  std::vector<Failure> failures_;
};

}  // namespace miniray
