// A worker on another machine. It has the same calls as Worker; a worker server starts its process for this connection.
//
//   miniray::RemoteWorker worker("node2", 10000);
//   worker.send({{"cmd", "echo"}});
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "miniray/export.hpp"
#include "miniray/limits.hpp"
#include "miniray/seconds.hpp"
#include "miniray/worker.hpp"

namespace MINIRAY_API miniray {

class Key;

struct RemoteOptions {
  std::string work_fn = {};  ///< the name of the function to run; empty: the one that the server was started with
  std::string key = {};      ///< 64 hexadecimal digits; empty: MINIRAY_KEY, or ~/.miniray/key
  /// Whether the connection is encrypted. By default, it is if it leaves this machine. False is for networks that you
  /// trust; both sides must say it. What goes through a Unix-domain socket is never encrypted here.
  std::optional<bool> encrypt = {};
  Seconds connect_timeout_s = limits::connect_timeout_ms / 1000.0;
  /// If one host does not answer the other for this long, each treats the other as gone.
  Seconds unreachable_s = limits::unreachable_ms / 1000.0;
  std::map<std::string, std::string> environment = {};  ///< set in the worker's process
  /// True if the server runs on this machine, and its Unix-domain socket is not forwarded from another. Large buffers
  /// then go through shared memory.
  bool same_machine = false;
  std::vector<int> cpus = {};  ///< the CPUs to run on, of those that the server may use; empty: all of these
  std::string label = {};      ///< marks the worker's output; by default its number
  WorkerOptions worker = {};

  std::shared_ptr<const Key> own_key = {};  ///< For MiniRay's own code: used in place of `key`, and wiped after use
};

/// Owns the connection; when it is closed, the server ends the process. It is a Worker: one thread at a time may use
/// it, it may be moved at any time, also into a Worker, and one that was moved from throws UsageError.
class RemoteWorker : public Worker {
 public:
  /// Connects to a server, which starts a process. `host` may be the path of a Unix-domain socket. Throws UnknownHost,
  /// Refused, or TimeoutError after connect_timeout_s.
  RemoteWorker(const std::string& host, int port, const RemoteOptions& options = {});
};

struct RemoteAddress {
  std::string host;
  int port = 0;
  RemoteOptions options = {};
  std::string name = {};        ///< the host's name in errors; by default `host`
  std::string other_host = {};  ///< tried if `host` cannot be reached
};

/// Connects to many servers at the same time. Returns the workers in the order of the addresses. If one connection
/// fails, closes all others and throws as RemoteWorker's constructor does.
[[nodiscard]] std::vector<Worker> create_remote_workers(const std::vector<RemoteAddress>& addresses);

}  // namespace miniray
