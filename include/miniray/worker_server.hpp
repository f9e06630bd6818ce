// Starts a worker for every connection that may have one. Runs where the workers shall run:
//
//   miniray::WorkerServer server("0.0.0.0", 10000, work);
//   server.serve_forever();
//
// Only who has the key is let in. A worker ends with its connection, and all of them with the server.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "miniray/handle.hpp"
#include "miniray/worker.hpp"

namespace miniray {

struct WorkerServerOptions {
  std::size_t num_workers = 0;  ///< at most so many at a time; 0: as many as come
  std::string key = {};         ///< 64 hexadecimal digits; empty: MINIRAY_KEY, or ~/.miniray/key
  /// Finds the function that a connection asks for by name. Called once for each name; what it throws is told to who
  /// asked.
  std::function<WorkFunction(const std::string& name)> find_work = {};
  /// Who was refused, and why. By default standard error.
  std::function<void(const std::string& line)> on_log = {};
  /// If set, gets what workers print, in whole lines; else they print where the server does. `label` is what the
  /// connection asked its worker to be called. Returns false if it can take no more for now.
  std::function<bool(const std::string& label, std::string_view lines)> on_output = {};
  /// If set too, gets what workers write to standard error, which else is part of what on_output gets. Each stream is
  /// in order; between the two the order is that of arrival.
  std::function<bool(const std::string& label, std::string_view lines)> on_errors = {};
  /// A signal came, or a second has passed; may throw, to end serving.
  std::function<void()> on_interrupt = {};
  std::function<void()> on_interrupt_in_worker = {};  ///< the workers' own; see ChannelOptions
  ForkOptions fork = {};

  // For language bindings.
  bool keep_interrupt_handler = false;  ///< workers keep the server's handler of SIGINT
  /// First in every worker; its connection asked for these variables, and the process's environment has them.
  std::function<void(const std::map<std::string, std::string>& environment)> on_start_in_worker = {};
};

class WorkerServer {
 public:
  /// Listens. `host` may be empty (all of this machine's addresses) or the path of a Unix-domain socket; port 0 is any
  /// that is free. `work` may be empty if connections say what they want.
  WorkerServer(const std::string& host, int port, WorkFunction work = {}, WorkerServerOptions options = {});
  WorkerServer(WorkerServer&&) noexcept;
  WorkerServer& operator=(WorkerServer&&) noexcept;
  /// Ends the workers that are left.
  ~WorkerServer();

  [[nodiscard]] int port() const;
  /// Serves until stop() or until on_interrupt throws; then ends its workers: each sees the end of its stream, has
  /// limits::orphan_grace_ms to finish, and is killed if it has not.
  void serve_forever();
  /// From any thread, or from on_interrupt: serving ends within a second.
  void stop();
  /// Calls an action from the loop whenever a descriptor can be read, until the server is gone.
  void on_ready(int descriptor, std::function<void()> action);
  /// The same for one that can be written to, for as long as the action says true.
  void when_writable(int descriptor, std::function<bool()> action);
  /// What on_output could not take before, it can take now.
  void resume_output();
  /// Finds a work function now, so that what is wrong with it shows now.
  void prepare(const std::string& work_fn);
  /// How many workers live.
  [[nodiscard]] std::size_t worker_count() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace miniray
