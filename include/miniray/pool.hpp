// Workers that share out tasks, which are calls of named functions:
//
//   miniray::registry().add("square", [](double x) { return x * x; });
//   miniray::Pool pool(4);
//   auto future = pool.submit<double>("square", 3);
//   double nine = future.get();
//   std::vector<double> squares = pool.map<double>("square", numbers);
//   auto typed = pool.submit([](double x) { return x * x; }, 3.0);   // no name, and the compiler checks:
//   typed_function.hpp auto trained = pool.with({.num_gpus = 1, .retries = 2}).submit<double>("train", config);
//
// There is no thread behind it: tasks progress while some thread of the program is in a call of the pool or of one of
// its futures. Workers that have a task work on meanwhile. Any thread may use a pool, its views and its futures.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "miniray/calls.hpp"
#include "miniray/cluster.hpp"
#include "miniray/error.hpp"
#include "miniray/event_log.hpp"
#include "miniray/export.hpp"
#include "miniray/future.hpp"
#include "miniray/restart_policy.hpp"
#include "miniray/seconds.hpp"
#include "miniray/task_options.hpp"
#include "miniray/typed_function.hpp"
#include "miniray/worker.hpp"

namespace MINIRAY_API miniray {

/// The task ran for longer than its timeout_s, and its worker was ended. what() has the stack, where that is known. It
/// is the task's outcome, and get() throws it again and again; a TimeoutError that is not a TaskTimeout says that the
/// task goes on.
class TaskTimeout : public TimeoutError {
 public:
  using TimeoutError::TimeoutError;
};

/// No worker is left, and none takes the place of the last one. what() says why.
class PoolBroken : public Error {
 public:
  using Error::Error;
};

struct PoolOptions {
  // Of each node; by default as many CPUs as it has workers, and the GPUs that are found there.
  std::optional<double> num_cpus = {};
  std::optional<std::size_t> num_gpus = {};
  Amounts resources = {};                              ///< of your own naming: {{"licence", 2}}
  std::map<std::string, Amounts> node_resources = {};  ///< besides, of the node of that name
  /// How often a worker may be replaced; by default, whenever one died.
  std::optional<RestartPolicy> restart = {};

  WorkerOptions worker = {};  ///< of a pool that forks its workers
  /// Of a pool on a cluster. A C++ program's nodes know it if it called
  /// init(argc, argv, {{"miniray.serve_calls", miniray::serve_calls}}); Python's know it anyway.
  std::string work_fn = "miniray.serve_calls";
  StartOptions start = {};  ///< of a pool on a cluster
  /// Of a pool that was given its workers: makes another for the place of one that died. Without it there is none.
  std::function<Worker(Worker& dead)> replace = {};
};

struct MapOptions {
  /// Items that go out together; by default as many as take some milliseconds, by what was measured. Where tasks have a
  /// time-out or memory_bytes, which are of one call, each goes out alone.
  std::optional<std::size_t> chunk_size = {};
  Timeout timeout_s = {};  ///< TimeoutError after; what is under way is cancelled
};

class PendingTask;  // a task whose result a future gets
class PoolDriver;   // does the work of a Pool
struct TaskTerms;   // options, checked

/// A future of a task, which may not even have begun. It may outlive its pool. cancel() drops a task that waits, and
/// ends one that runs, together with its worker.
class TaskFutureBase : public RemoteFutureBase {
 public:
  TaskFutureBase() = default;
  explicit TaskFutureBase(std::shared_ptr<PendingTask> task);

 private:
  friend class Pool;
  [[nodiscard]] const PendingTask& task() const;
};

template <class Result>
using TaskFuture = FutureOf<Result, TaskFutureBase>;

/// A pool, seen with terms for its tasks. The pool must outlive it.
class PoolView {
 public:
  /// "module.function" where workers are Python's; Keywords may come last. UsageError if the pool has been shut down,
  /// PoolBroken if it is broken. Borrowed arrays (Array::view) are copied.
  template <class Result = Value, class... Arguments>
  TaskFuture<Result> submit(std::string_view function, Arguments&&... arguments) const {
    auto [list, keywords] = pack_arguments(std::forward<Arguments>(arguments)...);
    return TaskFuture<Result>(begin(function, std::move(list), std::move(keywords)));
  }
  /// The same for a function without a name: a lambda without captures, miniray::fn<function>, or a function pointer
  /// that is registered (typed_function.hpp). The compiler checks the arguments, and the future has the type that the
  /// function returns. Throws UsageError if a function pointer is not registered. If a worker runs another program, the
  /// future throws CallError.
  template <RemoteFunction Function, class... Arguments>
  TaskFuture<RemoteResult<Function>> submit(Function function, Arguments&&... arguments) const {
    const std::string& name = detail::remote_name(function);
    return TaskFuture<RemoteResult<Function>>(
        begin(name, detail::typed_arguments<Function>(std::forward<Arguments>(arguments)...), {}));
  }
  /// The function of each item of a range (a container, a std::span, a view), in order. What an item raised is thrown
  /// when all that had begun is done; of several, the first. After a worker's death the items that it had are tried one
  /// by one, so that only the one which did it fails.
  template <class Result = Value, class Range>
  [[nodiscard]] std::vector<Result> map(std::string_view function, Range&& items,
                                        const MapOptions& options = {}) const {
    return results_as<Result>(std::string(function), map_values(function, list_of(items), options));
  }
  template <RemoteFunction Function, class Range>
  [[nodiscard]] std::vector<RemoteResult<Function>> map(Function function, Range&& items,
                                                        const MapOptions& options = {}) const {
    const std::string& name = detail::remote_name(function);
    return results_as<RemoteResult<Function>>(name, map_values(name, detail::typed_items<Function>(items), options));
  }
  /// The same pool with other terms. UsageError if no node can ever meet them.
  [[nodiscard]] PoolView with(const TaskOptions& options) const;

 protected:
  PoolView(PoolDriver& driver, const TaskOptions& options);

 private:
  std::shared_ptr<PendingTask> begin(std::string_view function, List arguments, Value keywords) const;
  [[nodiscard]] List map_values(std::string_view function, List items, const MapOptions& options) const;

  PoolDriver* driver_;
  std::shared_ptr<const TaskTerms> terms_;
};

struct PoolStatus {
  std::size_t queued = 0, running = 0, done = 0, failed = 0;  ///< tasks; each item of map() is one
  std::size_t workers = 0, idle = 0;
};
struct PoolWorker {
  std::string name, node;
  std::string state;  ///< "idle", "busy", "preparing", "ending"
  std::int64_t pid = 0;
  std::size_t tasks = 0;  ///< that it has, the one that runs included
};

/// A worker that died is replaced: by a fork of this process, or on its node of the cluster, whose server is launched
/// again if it is gone. That is done in the call that notices. A node that cannot be had is tried again after pauses
/// that are longer than the attempts, and used when it is back.
class Pool : public PoolView {
 public:
  /// Forks so many workers, which have what registry() has now; their replacements, what it has then.
  explicit Pool(int workers, const PoolOptions& options = {});
  /// Starts the workers of every node. The cluster must outlive the pool.
  explicit Pool(Cluster& cluster, const PoolOptions& options = {});
  /// Takes over workers that answer calls.
  explicit Pool(std::vector<Worker> workers, const PoolOptions& options = {});
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  /// Finishes nothing: futures that are not done throw Cancelled, their on_done is not called, and the workers end,
  /// with a few seconds for what they are at. Call shutdown() first to have it all.
  ~Pool();

  /// The positions of the futures that are done; none on time-out.
  [[nodiscard]] std::vector<std::size_t> wait_any(std::span<const TaskFutureBase* const> futures,
                                                  Timeout timeout_s = {});
  template <class Result>
  [[nodiscard]] std::vector<std::size_t> wait_any(const std::vector<TaskFuture<Result>>& futures,
                                                  Timeout timeout_s = {}) {
    return wait_any(std::span<const TaskFutureBase* const>(bases_of(futures)), timeout_s);
  }
  /// Finishes what was submitted, then ends the workers. No more can be submitted.
  void shutdown();

  /// What happened to workers, nodes and tasks.
  [[nodiscard]] EventLog& events();
  [[nodiscard]] PoolStatus status();
  [[nodiscard]] std::vector<PoolWorker> workers();

 private:
  explicit Pool(std::unique_ptr<PoolDriver> driver);
  std::unique_ptr<PoolDriver> driver_;
};

}  // namespace miniray
