// The inside of a Pool: runs the task driver whenever a thread is in one of the pool's calls, and hands out what became
// of the tasks. Any thread may use it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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

/// Gets the outcome of a task that was submitted for it, once. The pool holds its lock meanwhile.
class TaskOwner {
 public:
  TaskOwner() = default;
  TaskOwner(const TaskOwner&) = delete;
  TaskOwner& operator=(const TaskOwner&) = delete;
  virtual ~TaskOwner() = default;
  /// The reply has a value or values, unless there is a failure. What is added to `due` runs when the lock is free.
  virtual void on_outcome(CallReply reply, const std::exception_ptr& failure, const TaskOutcome& outcome,
                          Callbacks& due) = 0;
  /// What the task calls, for texts.
  [[nodiscard]] virtual const std::string& called() const = 0;

  std::int64_t number = 0;
};

/// The inside of a future.
class PendingTask : public PendingResult, public TaskOwner {
 public:
  PendingTask(PoolInside& inside, std::string function_name) : PendingResult(std::move(function_name)), pool(inside) {}
  bool wait(std::optional<double> timeout_s) override;
  void look() override;
  void cancel() override;
  [[nodiscard]] std::string describe_wait() const override { return "the task of " + function + " is not done"; }
  [[nodiscard]] const void* group() const override { return &pool; }
  void wait_any(std::span<const std::shared_ptr<Pending>> group, std::optional<double> timeout_s) override;
  void on_outcome(CallReply reply, const std::exception_ptr& failure, const TaskOutcome& outcome,
                  Callbacks& due) override;
  [[nodiscard]] const std::string& called() const override { return function; }

  PoolInside& pool;  // may be gone when it is done
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

  /// Gives every task that is submitted its number.
  [[nodiscard]] std::int64_t next_number() { return driver_.next_number(); }
  /// Submits a task with the owner's number. Throws if it cannot be sent or the pool takes no tasks, and then nothing
  /// was done. `of_map`: it belongs to a map, which a pool that shuts down finishes.
  void submit(const std::shared_ptr<TaskOwner>& owner, CallVerb verb, const Value& body,
              std::shared_ptr<const TaskTerms> terms, bool of_map = false);
  /// Throws if the pool takes no tasks.
  void begin_map();
  void end_map();
  /// Drops tasks that wait, and ends those that run, too, if that is wanted. Does not wait for it.
  void cancel(std::vector<std::int64_t> numbers, bool even_if_they_run);
  [[nodiscard]] std::size_t worker_count();

  [[nodiscard]] Tally& tally() { return driver_.tally(); }

  /// Waits until done(), which is called with the lock held. Returns false when the deadline has passed.
  template <class Done>
  bool wait(Done done, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    while (!done()) {
      if (deadline.passed()) return false;
      led_ ? follow(lock, deadline) : lead(lock, deadline.seconds_left());
    }
    return true;
  }
  /// Lets tasks progress, without waiting.
  void move_on();
  /// Finishes what was submitted, and ends the workers.
  void shut_down();

  [[nodiscard]] EventLog& events() { return events_; }
  [[nodiscard]] PoolStatus status();
  [[nodiscard]] std::vector<PoolWorker> workers();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // One of the threads that wait leads: it runs the driver, and settles tasks for all. The others follow.
  void lead(Lock& lock, std::optional<double> timeout_s);
  void follow(Lock& lock, const Deadline& deadline);
  template <class Answer, class Question>
  Answer ask(Question question);
  void require_open() const;
  void settle(const TaskOutcome& outcome, Callbacks& due);
  void answer(Ticket& ticket);
  void end_workers(Closing how);

  EventLog events_;
  std::function<Worker(Worker&)> make_;
  TaskDriver driver_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool led_ = false;
  LargeBuffers large_buffers_;
  std::unordered_map<std::int64_t, std::shared_ptr<TaskOwner>> under_way_;
  std::size_t maps_ = 0;  // under way
  bool closing_ = false;  // nothing new is taken
  bool closed_ = false;   // all that was taken is done
};

/// The function of each item, in order.
[[nodiscard]] List map_in_chunks(PoolInside& inside, const std::shared_ptr<const TaskTerms>& terms,
                                 const std::string& function, List items, const MapOptions& options);

}  // namespace miniray
