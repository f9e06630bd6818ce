// Does the work of a Pool: runs the task driver whenever a thread is in one of the pool's calls, and hands out the
// outcomes of tasks. Any thread may use it.
#pragma once

#include <atomic>
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
#include "base/fd.hpp"
#include "calls/call_format.hpp"
#include "miniray/pool.hpp"
#include "tasks/driver.hpp"
#include "tasks/large_buffers.hpp"
#include "tasks/worker_source.hpp"

namespace miniray {

/// Gets the outcome of a task that was submitted for it, once. The pool's lock is held meanwhile.
class TaskOwner {
 public:
  TaskOwner() = default;
  TaskOwner(const TaskOwner&) = delete;
  TaskOwner& operator=(const TaskOwner&) = delete;
  virtual ~TaskOwner() = default;
  /// The reply has a value or values, unless there is a failure. Callbacks that are added to `due` run when the lock is
  /// free.
  virtual void on_outcome(CallReply reply, const std::exception_ptr& failure, const TaskOutcome& outcome,
                          Callbacks& due) = 0;
  /// Returns the name of the function, for texts.
  [[nodiscard]] virtual const std::string& called() const = 0;

  std::int64_t number = 0;
};

/// A task whose result a future gets.
class PendingTask : public PendingResult, public TaskOwner {
 public:
  PendingTask(const std::shared_ptr<PoolDriver>& driver, std::string function_name)
      : PendingResult(std::move(function_name)), pool(driver), group_(driver.get()) {}
  bool wait(std::optional<double> timeout_s) override;
  void look() override;
  void cancel() override;
  [[nodiscard]] std::string describe_wait() const override { return "the task of " + function + " is not done"; }
  [[nodiscard]] const void* group() const override { return group_; }
  void wait_any(std::span<const std::shared_ptr<Pending>> group, std::optional<double> timeout_s) override;
  void on_outcome(CallReply reply, const std::exception_ptr& failure, const TaskOutcome& outcome,
                  Callbacks& due) override;
  [[nodiscard]] const std::string& called() const override { return function; }

  const std::weak_ptr<PoolDriver> pool;  // may be gone once the task is done

 private:
  const void* const group_;
};

/// The nodes and workers that a pool begins with.
struct Crew {
  std::vector<PoolNode> nodes;
  std::vector<PlacedWorker> workers;
  std::unique_ptr<WorkerSource> source;
  std::function<Worker(Worker& gone)> make = {};  ///< makes a worker for each of the source's tickets
  std::map<std::size_t, Channel> links = {};      ///< to the nodes' servers
};
[[nodiscard]] Crew forked_crew(int count, const PoolOptions& options);
[[nodiscard]] Crew given_crew(std::vector<Worker> workers, const PoolOptions& options);
/// The cluster must outlive it.
[[nodiscard]] Crew cluster_crew(Cluster& cluster, const PoolOptions& options);

class PoolDriver {
 public:
  PoolDriver(Crew crew, const PoolOptions& options);
  PoolDriver(const PoolDriver&) = delete;
  PoolDriver& operator=(const PoolDriver&) = delete;
  ~PoolDriver() { close(); }

  /// Checks the options of tasks. Throws UsageError if no task can have them here.
  [[nodiscard]] std::shared_ptr<const TaskTerms> terms(const TaskOptions& options) const;

  /// Returns a number for a task that is to be submitted.
  [[nodiscard]] static std::int64_t next_number() { return TaskDriver::next_number(); }
  /// Submits a task with the owner's number. If it throws, because the call cannot be sent or the pool takes no tasks,
  /// nothing was done. A task `of_map` is taken even while the pool shuts down, which finishes its maps.
  void submit(const std::shared_ptr<TaskOwner>& owner, CallVerb verb, const Value& body,
              std::shared_ptr<const TaskTerms> terms, bool of_map = false);
  /// Notes that a map begins. Throws if the pool takes no tasks.
  void begin_map();
  void end_map();
  /// Drops tasks that wait, and also ends those that run if `even_if_they_run`. Does not wait for that.
  void cancel(std::vector<std::int64_t> numbers, bool even_if_they_run);
  [[nodiscard]] std::size_t worker_count();

  [[nodiscard]] Tally& tally() { return driver_.tally(); }

  /// Waits until done() returns true; it is called with the lock held. Returns false when the deadline has passed.
  /// Throws Cancelled if the pool is closed before.
  template <class Done>
  bool wait(Done done, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    while (!done()) {
      if (gone_) throw_gone();
      if (deadline.passed()) return false;
      led_ ? follow(lock, deadline) : lead(lock, deadline.seconds_left());
    }
    return true;
  }
  /// Lets tasks progress, without waiting.
  void move_on();
  /// Finishes what was submitted, and ends the workers.
  void shut_down();
  /// Settles what is under way with Cancelled, waits until other threads have left the pool, and ends the workers. Does
  /// nothing the second time.
  void close();

  [[nodiscard]] EventLog& events() { return events_; }
  [[nodiscard]] PoolStatus status();
  [[nodiscard]] std::vector<PoolWorker> workers();

 private:
  friend class PoolVisit;
  using Lock = std::unique_lock<std::mutex>;

  // One of the threads that wait leads: it runs the driver and settles the tasks of all threads. The others follow.
  void lead(Lock& lock, std::optional<double> timeout_s);
  void follow(Lock& lock, const Deadline& deadline);
  template <class Question>
  auto ask(Question question);
  void require_open() const;
  [[noreturn]] static void throw_gone();
  void settle(const TaskOutcome& outcome, Callbacks& due);
  void answer(Ticket& ticket);
  void end_workers(Closing how);

  const std::uint64_t generation_ = process_generation();
  EventLog events_;
  std::function<Worker(Worker&)> make_;
  TaskDriver driver_;

  std::atomic<int> inside_ = 0;     // how many visits there are
  std::atomic<bool> gone_ = false;  // close() was called
  mutable std::mutex mutex_;        // guards what follows
  std::condition_variable changed_;
  bool led_ = false;
  LargeBuffers large_buffers_;
  std::unordered_map<std::int64_t, std::shared_ptr<TaskOwner>> under_way_;
  std::size_t maps_ = 0;  // that are under way
  bool closed_ = false;   // all tasks that were taken are done
};

/// A thread that is in a call of a pool. close() waits for the visits of other threads, and a callback that destroys
/// the pool leaves its inside to the visits of its own thread.
class PoolVisit {
 public:
  enum class Needs : std::uint8_t { nothing, pool };
  /// If the pool is gone, the visit is empty, or throws UsageError if it needs the pool. Throws UsageError in a child
  /// of the process that made the pool.
  explicit PoolVisit(const std::weak_ptr<PoolDriver>& pool, Needs needs = Needs::nothing);
  PoolVisit(const PoolVisit&) = delete;
  PoolVisit& operator=(const PoolVisit&) = delete;
  ~PoolVisit();

  explicit operator bool() const { return pool_ != nullptr; }
  PoolDriver* operator->() const { return pool_.get(); }
  [[nodiscard]] const std::shared_ptr<PoolDriver>& pool() const { return pool_; }
  /// Returns how often this thread visits the pool now.
  [[nodiscard]] static int of_this_thread(const PoolDriver& pool);

 private:
  std::shared_ptr<PoolDriver> pool_;
  const PoolVisit* outer_ = nullptr;  // the visit during which this one began
};

/// Calls the function with each item, and returns the results in the order of the items.
[[nodiscard]] List map_in_chunks(PoolDriver& pool, const std::shared_ptr<const TaskTerms>& terms,
                                 const std::string& function, List items, const MapOptions& options);

}  // namespace miniray
