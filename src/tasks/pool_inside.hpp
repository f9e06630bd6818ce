// The inside of a Pool: drives the tasks whenever its user is in one of the pool's calls, and hands out what became of
// them.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "calls/call_format.hpp"
#include "miniray/pool.hpp"
#include "tasks/driver.hpp"
#include "tasks/large_buffers.hpp"
#include "tasks/worker_source.hpp"

namespace miniray {

/// Who submitted a task, and is told once what became of it.
class TaskOwner {
 public:
  explicit TaskOwner(std::string function_name) : function(std::move(function_name)) {}
  TaskOwner(const TaskOwner&) = delete;
  TaskOwner& operator=(const TaskOwner&) = delete;
  virtual ~TaskOwner() = default;
  /// A value or values; or why there is none.
  virtual void settle(CallReply reply, const std::exception_ptr& failure, const std::string& worker) = 0;

  const std::string function;
  std::int64_t number = 0;
};

/// The inside of a future.
class PendingTask : public TaskOwner {
 public:
  PendingTask(PoolInside& inside, std::string function_name) : TaskOwner(std::move(function_name)), pool(&inside) {}
  void settle(CallReply reply, const std::exception_ptr& why, const std::string& worker) override;

  PoolInside* pool;  // none when it is done
  Value value;
  std::exception_ptr failure;
  std::vector<std::function<void()>> callbacks;  // until it is done
};

/// What a pool begins with.
struct Crew {
  std::vector<PoolNode> nodes;
  std::vector<PlacedWorker> workers;
  std::unique_ptr<WorkerSource> source;
  std::function<Worker(Worker& gone)> make = {};  ///< answers the source's tickets
  std::map<std::size_t, Channel> links = {};      ///< to the nodes' servers
};
[[nodiscard]] Crew forked_crew(int count, const PoolOptions& options);
[[nodiscard]] Crew given_crew(std::vector<Worker> workers, const PoolOptions& options);
/// The cluster must outlive it.
[[nodiscard]] Crew cluster_crew(Cluster& cluster, const PoolOptions& options);

class PoolInside {
 public:
  PoolInside(Crew crew, const PoolOptions& options);
  PoolInside(const PoolInside&) = delete;
  PoolInside& operator=(const PoolInside&) = delete;
  ~PoolInside();

  /// UsageError if no task can have them here.
  [[nodiscard]] std::shared_ptr<const TaskTerms> terms(const TaskOptions& options) const;

  /// Throws if it cannot be sent or the pool takes no tasks, and then nothing was done.
  void submit(const std::shared_ptr<TaskOwner>& owner, CallVerb verb, const Value& body,
              std::shared_ptr<const TaskTerms> terms);
  void cancel(std::int64_t number);
  [[nodiscard]] bool is_running(std::int64_t number) { return driver_.is_running(number); }
  [[nodiscard]] std::size_t worker_count() { return driver_.census().workers; }

  /// What an item of a map of this function takes, as measured last; 0 if it is not known.
  [[nodiscard]] double mean_ns(const std::string& function) const;
  void note_mean(const std::string& function, double ns);

  /// Until done(); false when the deadline has passed. Callbacks run meanwhile.
  template <class Done>
  bool wait(Done done, const Deadline& deadline) {
    run_due();
    while (!done()) {
      if (deadline.passed()) return false;
      move_on(deadline.seconds_left());
      run_due();
    }
    return true;
  }
  /// What can be done now; waits at most so long for something to do. For ever without a time.
  void move_on(std::optional<double> timeout_s);
  void add_due(std::function<void()> callback) { due_.push_back(std::move(callback)); }
  void run_due();
  /// Finishes what was submitted, and ends the workers.
  void shut_down();

  [[nodiscard]] EventLog& events() { return events_; }
  [[nodiscard]] PoolStatus status();
  [[nodiscard]] std::vector<PoolWorker> workers();

 private:
  void require_open() const;
  void settle(const TaskOutcome& outcome);
  void answer(Ticket& ticket);
  void end_workers(Closing how);

  EventLog events_;
  std::function<Worker(Worker&)> make_;
  TaskDriver driver_;
  LargeBuffers large_buffers_;
  std::unordered_map<std::int64_t, std::shared_ptr<TaskOwner>> under_way_;
  std::deque<std::function<void()>> due_;
  std::map<std::string, double> means_ns_;
  bool closed_ = false;
  std::size_t done_ = 0, failed_ = 0;
};

/// The function of each item, in order.
[[nodiscard]] List map_in_chunks(PoolInside& inside, const std::shared_ptr<const TaskTerms>& terms,
                                 const std::string& function, List items, const MapOptions& options);

}  // namespace miniray
