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

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/event_log.hpp"
#include "miniray/restart_policy.hpp"
#include "miniray/worker.hpp"

namespace miniray {

struct SupervisionOptions {
  RestartPolicy policy = {};
  /// Runs with each new process before anything else is sent to it: the place to send it its state again.
  std::function<void(Worker&)> on_restart = {};
  std::shared_ptr<EventLog> events = {};    ///< none: one of its own
  std::string node = {};                    ///< how events call it
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
};

class SupervisedWorker {
 public:
  using Start = std::function<Worker()>;
  using Replace = std::function<Worker(Worker& dead)>;

  /// Starts a worker now, and another whenever it dies.
  explicit SupervisedWorker(const Start& start, SupervisionOptions options = {});
  /// For a worker that runs already.
  SupervisedWorker(Worker worker, Replace replace, SupervisionOptions options = {});

  // As Worker's. If the process has died it is replaced, and WorkerRestarted is thrown, once; if the policy refuses,
  // or no other can be had, WorkerDied. If the work function threw, WorkerError is thrown, and the worker is new too.
  void send(const Value& value);
  [[nodiscard]] Value recv(const ReceiveOptions& options = {});
  void send(const Message& message);
  [[nodiscard]] Message receive(const ReceiveOptions& options = {});

  /// The process of now. Calls on it are not supervised.
  [[nodiscard]] Worker& worker() { return worker_; }
  [[nodiscard]] int restarts() const { return restarts_; }
  [[nodiscard]] EventLog& events() { return *options_.events; }

  /// One rung lower: puts another process in the place of one that has ended, as the policy allows. False if it does
  /// not, or if no other can be had.
  bool recover(const Error& why);

 private:
  template <class Call>
  auto supervised(const Call& call);
  void note(const char* kind, const std::string& text);

  Replace replace_;
  SupervisionOptions options_;
  RestartBudget budget_;
  Worker worker_;
  int restarts_ = 0;
  pid_t noted_pid_ = 0;  // whose death is in the log
  std::string refusal_;
};

/// Workers of connect_to_servers(). Each is replaced on its node, whose server is launched again if it is gone; or on
/// another node, if that fails and the policy allows it. The cluster must outlive them.
[[nodiscard]] std::vector<SupervisedWorker> supervise(Cluster& cluster, std::vector<Worker> workers,
                                                      const SupervisionOptions& options);

/// One rung lower: the replacement of a cluster's worker whose place is on node `home`.
[[nodiscard]] Worker replace_in_cluster(Cluster& cluster, Worker& worker, std::size_t home, bool other_nodes,
                                        EventLog& events);

}  // namespace miniray
