// A worker that is replaced when it dies:
//
//   miniray::SupervisedWorker worker([] { return miniray::Worker(work); }, {.policy = {.max_restarts = 3}});
//   try {
//     worker.send(order);
//     answer = worker.recv();
//   } catch (const miniray::WorkerRestarted&) {  // thrown once; what was sent is lost, and the worker is new
//   }
//
// A death is noticed by the next call on the worker, and handled in it, pauses included: there is no thread that
// watches.
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
  /// Runs with each new process before anything else is sent to it: the place to send it its state again. Calls in it
  /// are not supervised. WorkerDied and WorkerError, which say that the new process has ended, count as one more failed
  /// attempt. Whatever else it throws comes out of the call that noticed the death: the new process is then killed, as
  /// it lacks its state, and the next call on the worker begins another recovery.
  std::function<void(Worker&)> on_restart = {};
  std::shared_ptr<EventLog> events = {};    ///< none: a log of its own
  std::string node = {};                    ///< how events call the node
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
  std::function<void()> on_event = {};      ///< called after each event that supervision adds to the log
};

/// The recovery of one worker: starts another process in the place of one that has died or whose work function has
/// thrown, as the policy allows. For one thread at a time, as its worker is.
class Supervision : public Recovery {
 public:
  /// Makes the process that takes the place of the dead worker's. It may throw: UsageError, and what is no Error, comes
  /// out to the caller; another Error is a failed attempt.
  using Replace = std::function<Worker(Worker& dead)>;
  /// What `on_restart` may throw, beside WorkerDied and WorkerError, to say that the attempt has failed.
  class AttemptFailed : public Error {
   public:
    using Error::Error;
  };

  /// Throws UsageError if the policy cannot be right.
  Supervision(Replace replace, SupervisionOptions options);
  /// Makes `supervision` the recovery of the worker, and notes that in the log.
  static void begin(Worker& worker, const std::shared_ptr<Supervision>& supervision);

  void on_end(Worker& worker, std::exception_ptr why) override;
  /// Attempts to recover until one succeeds or the policy refuses, with pauses that an interrupt can end; then tell().
  [[noreturn]] void recover(Worker& worker) override;

  // One rung lower, for a caller that pauses in its own way: the steps of recover(), of which none waits for a pause.
  /// How long to pause before the next attempt, in seconds; nothing if the policy refuses.
  [[nodiscard]] std::optional<double> pause_before_attempt(Worker& worker);
  /// One attempt: replaces the process, and prepares the new one with `on_restart`. False if it has failed.
  bool attempt(Worker& worker);
  /// Throws what the caller of the worker is to hear: WorkerError as it was; WorkerRestarted; or WorkerDied with the
  /// reason for the refusal.
  [[noreturn]] void tell(Worker& worker) override;

  /// Whether an end was found that tell() has not told.
  [[nodiscard]] bool pending() const override { return pending_; }
  /// Whether another process has taken the place of the one whose end was found last.
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
  int noted_ = -1;  // the death after so many restarts is in the log
  std::exception_ptr end_;
  bool pending_ = false;
  bool recovered_ = false;
  std::string failure_;  // of the last attempt
  std::string refusal_;
};

/// A worker that is supervised from its start. Its calls are Worker's, with what recovery adds: if the process has
/// died, it is replaced and WorkerRestarted is thrown, once; if the policy refuses, WorkerDied. If the work function
/// threw, WorkerError is thrown, and the process is new too. It may be moved; after that, calls on the old object throw
/// UsageError.
class SupervisedWorker {
 public:
  using Start = std::function<Worker()>;
  using Replace = Supervision::Replace;

  /// Starts a worker now, and another whenever it dies.
  explicit SupervisedWorker(const Start& start, SupervisionOptions options = {});
  /// For a worker that runs already.
  SupervisedWorker(Worker worker, Replace replace, SupervisionOptions options = {});

  void send(const Value& value) { worker_.send(value); }
  [[nodiscard]] Value recv(const ReceiveOptions& options = {}) { return worker_.recv(options); }
  void send(const Message& message) { worker_.send(message); }
  [[nodiscard]] Message receive(const ReceiveOptions& options = {}) { return worker_.receive(options); }

  /// The worker itself, which is supervised wherever it is used. It stays the same when its process is replaced.
  [[nodiscard]] Worker& worker() { return worker_; }
  [[nodiscard]] int restarts() const { return supervision().restarts(); }
  [[nodiscard]] EventLog& events() { return supervision().events(); }

  /// One rung lower: puts another process in the place of one that has ended, as the policy allows. False if it does
  /// not allow it.
  bool recover(const Error& why);

 private:
  [[nodiscard]] Supervision& supervision() const {
    if (!supervision_) throw_moved_from("SupervisedWorker");
    return *supervision_;
  }

  Worker worker_;
  std::shared_ptr<Supervision> supervision_;
};

/// Workers of connect_to_servers(). Each is replaced on its node, whose server is launched again if it is gone; or on
/// another node, if that fails and the policy allows it. The cluster must outlive them.
[[nodiscard]] std::vector<SupervisedWorker> supervise(Cluster& cluster, std::vector<Worker> workers,
                                                      const SupervisionOptions& options);

/// One rung lower: the replacement of a cluster's worker whose place is on node `home`.
[[nodiscard]] Worker replace_in_cluster(Cluster& cluster, Worker& worker, std::size_t home, bool other_nodes,
                                        EventLog& events);

}  // namespace miniray
