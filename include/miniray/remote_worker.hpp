// A worker on another machine: the same calls as Worker, to a process that a worker server starts for this connection.
//
//   miniray::RemoteWorker worker("node2", 10000);
//   worker.send({{"cmd", "echo"}});
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "miniray/limits.hpp"
#include "miniray/worker.hpp"

namespace miniray {

struct RemoteOptions {
  std::string work_fn = {};  ///< which function to run; empty: the one that the server was started with
  std::string key = {};      ///< 64 hexadecimal digits; empty: MINIRAY_KEY, or ~/.miniray/key
  double connect_timeout_s = limits::connect_timeout_ms / 1000.0;
  /// A host that does not answer for so long is taken to be gone, here and there.
  double unreachable_s = limits::unreachable_ms / 1000.0;
  std::map<std::string, std::string> environment = {};  ///< for the worker's process
  /// The server is on this machine, and its Unix-domain socket is not carried from another: large buffers may go
  /// through shared memory.
  bool same_machine = false;
  std::vector<int> cpus = {};  ///< where it runs, of those that its server may use; empty: anywhere
  std::string label = {};      ///< how its output is marked; by default its number
  WorkerOptions worker = {};
};

class RemoteWorker : public Worker {
 public:
  /// Connects, and has the server start a process. `host` may be the path of a Unix-domain socket. Throws Refused,
  /// UnknownHost or TimeoutError.
  RemoteWorker(const std::string& host, int port, const RemoteOptions& options = {});
};

struct RemoteAddress {
  std::string host;
  int port = 0;
  RemoteOptions options = {};
  std::string name = {};        ///< how errors call the host; by default `host`
  std::string other_host = {};  ///< tried if `host` cannot be reached
};

/// All at once; the workers come in the order of the addresses. If one fails, none is left.
[[nodiscard]] std::vector<Worker> create_remote_workers(const std::vector<RemoteAddress>& addresses);

}  // namespace miniray
