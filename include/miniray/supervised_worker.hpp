// A worker that is replaced when it dies:
//
//   miniray::SupervisedWorker worker([] { return miniray::Worker(work); }, {.policy = {.max_restarts = 3}});
//   try {
//     worker.send(order);
//     answer = worker.recv();
//   } catch (const miniray::WorkerRestarted&) {  // thrown once; what was sent is lost, and the worker is new
//   }
//
// No thread watches the worker: the next call on it notices a death and handles it, including the pauses.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/event_log.hpp"
#include "miniray/export.hpp"
#include "miniray/restart_policy.hpp"
#include "miniray/worker.hpp"

namespace MINIRAY_API miniray {

struct SupervisionOptions {
  RestartPolicy policy = {};
  /// Called with each new process before any other message; use it to send the process its state. Calls in it are not
  /// supervised. If it throws WorkerDied or WorkerError, the new process has ended, and the attempt has failed. Any
  /// other exception reaches the call that noticed the death; the new process, which lacks its state, is then killed,
  /// and the next call on the worker begins another recovery.
  std::function<void(Worker&)> on_restart = {};
  std::shared_ptr<EventLog> events = {};    ///< where events go; null: a log of its own
  std::string node = {};                    ///< the name of the node in events
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
  std::function<void()> on_event = {};      ///< called after each event that supervision adds to the log
};

/// The recovery of one worker: if its process dies or its work function throws, this starts another process, as the
/// policy allows. One thread at a time may use it, as its worker.
class Supervision : public Recovery {
 public:
  /// Starts the replacement of the dead worker. If it throws UsageError, or an exception that is no Error, the caller
  /// gets it; any other Error is a failed attempt.
  using Replace = std::function<Worker(Worker& dead)>;
  /// `on_restart` may throw it to say that the attempt has failed.
  class AttemptFailed : public Error {
   public:
    using Error::Error;
  };

  /// Throws UsageError if the policy is not valid.
  Supervision(Replace replace, SupervisionOptions options);
  /// Makes `supervision` the recovery of the worker, and adds that to the log.
  static void begin(Worker& worker, const std::shared_ptr<Supervision>& supervision);

  void on_end(Worker& worker, std::exception_ptr why) override;
  /// Tries until an attempt succeeds or the policy refuses, and then calls tell(). An interrupt ends a pause.
  [[noreturn]] void recover(Worker& worker) override;

  // One rung lower: the steps of recover(), for a caller that pauses in its own way. None of them pauses.
  /// Returns how long to pause before the next attempt, in seconds; nullopt if the policy refuses. Callers that ask
  /// before that attempt is made share it: the policy counts one restart.
  [[nodiscard]] std::optional<double> pause_before_attempt(Worker& worker);
  /// Makes one attempt: replaces the process and calls `on_restart` with the new one. Returns false if it failed.
  bool attempt(Worker& worker);
  /// Throws what the caller of the worker gets: WorkerError as it was; WorkerRestarted; or WorkerDied with the reason
  /// why there was no restart.
  [[noreturn]] void tell(Worker& worker) override;

  /// Returns whether an end was found that tell() has not reported yet.
  [[nodiscard]] bool pending() const override { return pending_; }
  /// Returns whether the process whose end was found last has been replaced.
  [[nodiscard]] bool recovered() const { return recovered_; }
  [[nodiscard]] int restarts() const { return restarts_; }
  [[nodiscard]] EventLog& events() const { return *options_.events; }

 private:
  void note(Worker& worker, const char* kind, const std::string& text, Value details = {});
  bool failed(Worker& worker, const Error& error);

  Replace replace_;
  SupervisionOptions options_;
  RestartBudget budget_;
  int restarts_ = 0;
  int noted_ = -1;  // the number of restarts at the last death that is in the log
  std::exception_ptr end_;
  bool pending_ = false;
  bool recovered_ = false;
  std::optional<double> due_pause_s_;  // before an attempt that was granted and not made yet
  std::string failure_;                // why the last attempt failed
  std::string refusal_;
};

/// A worker that is supervised from its start. It has the calls of a Worker. If the process has died, a call replaces
/// it and throws WorkerRestarted, once; if the policy refuses, it throws WorkerDied. If the work function threw, the
/// process is replaced too, and the call throws WorkerError. One thread at a time may use it, also its worker(); no
/// other thread takes part, so a replacement is started, and on_restart called, in the thread of the call that has
/// noticed the end. It owns the worker, and its destructor closes it as that of a Worker does. The object may be moved;
/// calls on the old object then throw UsageError.
class SupervisedWorker {
 public:
  using Start = std::function<Worker()>;
  using Replace = Supervision::Replace;

  /// Starts a worker now, and a replacement whenever it dies.
  explicit SupervisedWorker(const Start& start, SupervisionOptions options = {});
  /// Supervises a worker that runs already.
  SupervisedWorker(Worker worker, Replace replace, SupervisionOptions options = {});

  void send(const Value& value) { worker_.send(value); }
  [[nodiscard]] Value recv(const ReceiveOptions& options = {}) { return worker_.recv(options); }
  template <class T>
  [[nodiscard]] T recv(const ReceiveOptions& options = {}) {
    return worker_.recv<T>(options);
  }
  void send(const std::same_as<Message> auto& message) { worker_.send(message); }
  [[nodiscard]] Message receive(const ReceiveOptions& options = {}) { return worker_.receive(options); }

  /// Returns the worker, which is supervised wherever it is used. It stays the same object when its process is
  /// replaced.
  [[nodiscard]] Worker& worker() { return worker_; }
  [[nodiscard]] int restarts() const { return supervision().restarts(); }
  [[nodiscard]] EventLog& events() { return supervision().events(); }

  /// One rung lower: replaces a process that has ended. Returns false if the policy refuses.
  bool recover(const Error& why);

 private:
  [[nodiscard]] Supervision& supervision() const {
    if (!supervision_) throw_moved_from("SupervisedWorker");
    return *supervision_;
  }

  Worker worker_;
  std::shared_ptr<Supervision> supervision_;
};

/// Supervises workers of connect_to_servers(). A worker that dies is replaced on its node, whose server is launched
/// again if it is gone. If that fails and the policy allows it, the replacement is on another node. The cluster must
/// outlive the workers.
[[nodiscard]] std::vector<SupervisedWorker> supervise(Cluster& cluster, std::vector<Worker> workers,
                                                      const SupervisionOptions& options);

/// One rung lower: replaces a worker of a cluster that belongs to the node `home`.
[[nodiscard]] Worker replace_in_cluster(Cluster& cluster, Worker& worker, std::size_t home, bool other_nodes,
                                        EventLog& events);

}  // namespace miniray
