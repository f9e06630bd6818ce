// A worker server starts a worker for every connection that is let in. It runs on the machine where the workers run:
//
//   miniray::WorkerServer server("0.0.0.0", 10000, work);  // "127.0.0.1": only processes on this machine can connect
//   server.serve_forever();
//
// Connections require a shared key. A worker ends with its connection, and all workers end with the server.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "miniray/export.hpp"
#include "miniray/handle.hpp"
#include "miniray/worker.hpp"

namespace MINIRAY_API miniray {

class Key;

struct WorkerServerOptions {
  std::size_t num_workers = 0;  ///< the most workers at a time; 0: no limit
  /// The largest message that its workers send or receive. A connection may ask for less.
  std::uint64_t message_bytes_max = limits::message_bytes_max;
  std::string key = {};  ///< 64 hexadecimal digits; empty: MINIRAY_KEY, or ~/.miniray/key
  /// Whether connections are encrypted. By default, those are that leave this machine. False is for networks that you
  /// trust; both sides must say it. What goes through a Unix-domain socket is never encrypted here.
  std::optional<bool> encrypt = {};
  /// Returns the function that a connection names in its request. Called once for each name. If it throws, the
  /// connection is refused with the text of the exception.
  std::function<WorkFunction(const std::string& name)> find_work = {};
  /// Gets lines about connections that were refused, with the reason. After the first few of a minute
  /// (limits::refusals_logged_of_address_max, of one address), they are counted, and a line at the end of the minute
  /// has the number. By default the lines go to standard error, and are dropped if it is full, so that the server goes
  /// on.
  std::function<void(const std::string& line)> on_log = {};
  /// If set, gets what workers print, in whole lines; else workers print where the server does. `label` is the one that
  /// the connection asked for. Returns false if it takes no more for now; resume_output() continues.
  std::function<bool(const std::string& label, std::string_view lines)> on_output = {};
  /// If set too, gets what workers write to standard error, which on_output gets otherwise. The lines of each stream
  /// keep their order; lines of different streams come in the order of arrival.
  std::function<bool(const std::string& label, std::string_view lines)> on_errors = {};
  /// Called after every signal and at least once a second. It may throw, which ends serve_forever().
  std::function<void()> on_interrupt = {};
  std::function<void()> on_interrupt_in_worker = {};  ///< the on_interrupt of a worker's channel; see ChannelOptions
  ForkOptions fork = {};

  // For language bindings, and for servers that MiniRay starts itself.
  std::shared_ptr<const Key> own_key = {};  ///< used in place of `key`, and wiped after use
  bool keep_interrupt_handler = false;      ///< workers keep the server's handler of SIGINT
  /// Called first in every worker, with the variables that its connection asked for; they are already set.
  std::function<void(const std::map<std::string, std::string>& environment)> on_start_in_worker = {};
};

/// Owns the port and the processes of the workers. serve_forever() does all work, including the calls of find_work and
/// of the other functions in the options, in the thread that calls it. Any thread may call stop(); of the other calls,
/// one thread at a time. A server may be moved while it does not serve. One that was moved from can be destroyed and
/// assigned to, and every other call on it throws UsageError.
class WorkerServer {
 public:
  /// Listens on a port. `host` is "127.0.0.1" or empty (only processes on this machine can connect), "0.0.0.0" (other
  /// machines can too), another address of this machine, or the path of a Unix-domain socket. Port 0 stands for any
  /// free port. `work` may be empty if every connection names its function. Throws UnknownHost, or SystemError if the
  /// port is taken.
  WorkerServer(const std::string& host, int port, WorkFunction work = {}, WorkerServerOptions options = {});
  WorkerServer(WorkerServer&&) noexcept;
  WorkerServer& operator=(WorkerServer&&) noexcept;
  /// Ends the workers that still run.
  ~WorkerServer();

  [[nodiscard]] int port() const;
  /// Serves until stop() is called or on_interrupt throws, and then ends the workers: each sees the end of its stream,
  /// has limits::orphan_grace_ms to finish, and is killed if it has not finished.
  void serve_forever();
  /// Makes serve_forever() return within a second. Any thread may call it, and so may on_interrupt.
  void stop();
  /// Has serve_forever() call an action whenever a descriptor can be read, until the server is destroyed.
  void on_ready(int descriptor, std::function<void()> action);
  /// Has serve_forever() call an action whenever a descriptor can be written, until the action returns false.
  void when_writable(int descriptor, std::function<bool()> action);
  /// Tells the server that on_output and on_errors take lines again, after one of them has returned false.
  void resume_output();
  /// Calls find_work now, so that an error in a work function shows before a connection asks for it.
  void prepare(const std::string& work_fn);
  /// Returns how many workers are alive.
  [[nodiscard]] std::size_t worker_count() const;

 private:
  class State;
  Owned<State> state_;
};

}  // namespace miniray
