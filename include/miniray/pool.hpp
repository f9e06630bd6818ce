// A pool runs tasks, which are calls of functions, on whichever worker is free:
//
//   miniray::registry().add("square", [](double x) { return x * x; });
//   miniray::Pool pool(4);
//   auto future = pool.submit<double>("square", 3);
//   double nine = future.get();
//   std::vector<double> squares = pool.map<double>("square", numbers);
//   auto typed = pool.submit([](double x) { return x * x; }, 3.0);  // checked by the compiler: typed_function.hpp
//   auto trained = pool.with({.num_gpus = 1, .retries = 2}).submit<double>("train", config);
//
// There is no thread behind a pool: tasks are sent and results received while a thread of the program is in a call of
// the pool or of one of its futures. A worker that has tasks works on in any case. Any thread may use a pool, its views
// and its futures; in a child that the program forks, their calls throw UsageError.
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

/// Thrown if the task ran for longer than its timeout_s. Its worker was killed; what() has its stack, if that is known.
/// get() throws it each time. A TimeoutError that is not a TaskTimeout means that the task is still running.
class TaskTimeout : public TimeoutError {
 public:
  using TimeoutError::TimeoutError;
};

/// Thrown if no worker is left and none can be started. what() says why.
class PoolBroken : public Error {
 public:
  using Error::Error;
};

struct PoolOptions {
  // What each node has. By default, a node has a CPU for each worker, and the GPUs that are found there.
  std::optional<double> num_cpus = {};
  std::optional<std::size_t> num_gpus = {};
  Amounts resources = {};                              ///< resources that you name, on every node: {{"licence", 2}}
  std::map<std::string, Amounts> node_resources = {};  ///< further resources of the node of that name
  /// Limits how often workers are replaced. By default there is no limit.
  std::optional<RestartPolicy> restart = {};

  WorkerOptions worker = {};  ///< for a pool that forks its workers
  /// The work function of a pool on a cluster. A C++ program has to pass it to init():
  /// init(argc, argv, {{"miniray.serve_calls", miniray::serve_calls}}). Nodes that run Python have it.
  std::string work_fn = "miniray.serve_calls";
  StartOptions start = {};  ///< for a pool on a cluster
  /// For a pool that was given its workers: starts a replacement. If it is empty, dead workers are not replaced.
  std::function<Worker(Worker& dead)> replace = {};
};

struct MapOptions {
  /// How many items are sent together. By default, as many as take a few milliseconds. If tasks have timeout_s or
  /// memory_bytes, each item is sent alone, because these limit one call.
  std::optional<std::size_t> chunk_size = {};
  Timeout timeout_s = {};  ///< then map() throws TimeoutError, and kills the workers that run its items
};

class PendingTask;  // a task whose result a future gets
class PoolDriver;   // does the work of a Pool
struct TaskTerms;   // options, checked

/// A future of a task. It may outlive its pool. cancel() drops a task that waits, and kills the worker of a task that
/// runs.
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

/// A pool with options for its tasks. It refers to the pool and does not keep it: when the pool is gone, its calls
/// throw UsageError. Any thread may call it. Copies refer to the same pool; moving a view copies it, so that the old
/// one can be used further.
class PoolView {
 public:
  PoolView(const PoolView&) = default;
  PoolView& operator=(const PoolView&) = default;
  ~PoolView() = default;

  /// Submits a task: a call of a function by its name. A function of Python workers is "module.function"; Keywords may
  /// be the last argument. Borrowed arrays (Array::view) are copied. Throws UsageError after shutdown(), and
  /// PoolBroken.
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
  /// Calls the function with each item of a range (a container, a std::span, a view). Returns the results in order. If
  /// items fail, throws the error of the first of them, when all that have begun are done. If a worker dies, its items
  /// are tried again one by one, so that only the item that kills workers fails.
  template <class Result = Value, class Range>
  [[nodiscard]] Results<Result> map(std::string_view function, Range&& items, const MapOptions& options = {}) const {
    return results_as<Result>(std::string(function), map_values(function, list_of(items), options));
  }
  template <RemoteFunction Function, class Range>
  [[nodiscard]] Results<RemoteResult<Function>> map(Function function, Range&& items,
                                                    const MapOptions& options = {}) const {
    const std::string& name = detail::remote_name(function);
    return results_as<RemoteResult<Function>>(name, map_values(name, detail::typed_items<Function>(items), options));
  }
  /// Returns the pool with other options for its tasks. Throws UsageError if no node can ever meet them.
  [[nodiscard]] PoolView with(const TaskOptions& options) const;

 protected:
  PoolView(const std::shared_ptr<PoolDriver>& driver, const TaskOptions& options);

 private:
  std::shared_ptr<PendingTask> begin(std::string_view function, List arguments, Value keywords) const;
  [[nodiscard]] List map_values(std::string_view function, List items, const MapOptions& options) const;

  std::weak_ptr<PoolDriver> driver_;
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
  std::size_t tasks = 0;  ///< tasks of this worker, including the one that runs
};

/// A worker that died is replaced, in the call that notices: by a fork of this process, or on its node of the cluster,
/// whose server is launched again if it is gone. A node that cannot be reached is tried again after pauses, and used
/// when it is back.
class Pool : public PoolView {
 public:
  /// Forks `workers` processes. They have what registry() has now; replacements have what it has when they are forked.
  explicit Pool(int workers, const PoolOptions& options = {});
  /// Starts workers on every node. The cluster must outlive the pool.
  explicit Pool(Cluster& cluster, const PoolOptions& options = {});
  /// Takes ownership of workers that answer calls.
  explicit Pool(std::vector<Worker> workers, const PoolOptions& options = {});
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  /// Cancels unfinished tasks: their futures throw Cancelled, and on_done is not called. Workers that have a task are
  /// interrupted, and killed soon after. Call shutdown() first to finish all tasks. Other threads that wait for the
  /// pool or its futures get Cancelled, and the destructor waits until they have left; a thread must not begin a call
  /// of the Pool object meanwhile. A callback may destroy the pool whose call runs it. A fork's child ends no worker.
  ~Pool();

  /// Waits until a future is done. Returns the positions of all that are done; empty on time-out.
  [[nodiscard]] std::vector<std::size_t> wait_any(std::span<const TaskFutureBase* const> futures,
                                                  Timeout timeout_s = {});
  template <class Result>
  [[nodiscard]] std::vector<std::size_t> wait_any(const std::vector<TaskFuture<Result>>& futures,
                                                  Timeout timeout_s = {}) {
    return wait_any(std::span<const TaskFutureBase* const>(bases_of(futures)), timeout_s);
  }
  /// Finishes all submitted tasks, then ends the workers. After that, the pool takes no more tasks. Returns early
  /// if the pool is destroyed meanwhile, by a callback or another thread.
  void shutdown();

  /// Returns the log of what happened to workers, nodes and tasks.
  [[nodiscard]] EventLog& events();
  [[nodiscard]] PoolStatus status();
  [[nodiscard]] std::vector<PoolWorker> workers();

 private:
  explicit Pool(std::shared_ptr<PoolDriver> driver);
  std::shared_ptr<PoolDriver> driver_;
};

}  // namespace miniray
