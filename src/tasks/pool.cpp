#include "miniray/pool.hpp"

#include "calls/call_failures.hpp"
#include "tasks/pool_inside.hpp"

namespace miniray {

bool TaskFutureBase::wait(std::optional<double> timeout_s) const {
  if (task_->pool == nullptr) return true;
  return task_->pool->wait([this] { return task_->pool == nullptr; }, Deadline::in_seconds(timeout_s));
}

bool TaskFutureBase::ready() const {
  PoolInside* const pool = task_->pool;
  if (pool == nullptr) return true;
  pool->move_on(0.0);
  pool->run_due();
  return task_->pool == nullptr;
}

bool TaskFutureBase::cancel() const {
  if (ready()) return false;
  PoolInside& pool = *task_->pool;
  pool.cancel(task_->number);
  pool.run_due();
  return true;
}

const Value& TaskFutureBase::result(std::optional<double> timeout_s) const {
  if (!wait(timeout_s))
    throw TimeoutError("the task of " + task_->function + " is not done after " + std::to_string(*timeout_s) +
                       " s; it goes on, and its result is not lost");
  if (task_->failure) std::rethrow_exception(task_->failure);
  return task_->value;
}

const std::string& TaskFutureBase::function() const { return task_->function; }

void TaskFutureBase::notify(std::function<void()> callback) const {
  if (task_->pool == nullptr)
    callback();
  else
    task_->callbacks.push_back(std::move(callback));
}

PoolView::PoolView(PoolInside& inside, const TaskOptions& options) : inside_(&inside), terms_(inside.terms(options)) {}

PoolView PoolView::with(const TaskOptions& options) const { return {*inside_, options}; }

std::shared_ptr<PendingTask> PoolView::begin(std::string_view function, List arguments, Value keywords) const {
  auto task = std::make_shared<PendingTask>(*inside_, std::string(function));
  const Value body = call_body(function, std::move(arguments), std::move(keywords), terms_->memory_bytes);
  try {
    inside_->submit(task, CallVerb::call, body, terms_);
  } catch (const Unsendable& error) {
    unsendable_argument(task->function, body.at(1).list(), error);
  }
  inside_->move_on(0.0);
  inside_->run_due();
  return task;
}

List PoolView::map_values(std::string_view function, List items, const MapOptions& options) const {
  return map_in_chunks(*inside_, terms_, std::string(function), std::move(items), options);
}

Pool::Pool(std::unique_ptr<PoolInside> inside) : PoolView(*inside, {}), inside_(std::move(inside)) {}
Pool::Pool(int workers, const PoolOptions& options)
    : Pool(std::make_unique<PoolInside>(forked_crew(workers, options), options)) {}
Pool::Pool(Cluster& cluster, const PoolOptions& options)
    : Pool(std::make_unique<PoolInside>(cluster_crew(cluster, options), options)) {}
Pool::Pool(std::vector<Worker> workers, const PoolOptions& options)
    : Pool(std::make_unique<PoolInside>(given_crew(std::move(workers), options), options)) {}
Pool::~Pool() = default;

std::vector<std::size_t> Pool::wait_any(std::span<const TaskFutureBase* const> futures,
                                        std::optional<double> timeout_s) {
  if (futures.empty()) throw UsageError("wait_any was given nothing to wait for");
  for (const TaskFutureBase* future : futures)
    if (future->task_->pool != nullptr && future->task_->pool != inside_.get())
      throw UsageError("wait_any was given a future of another pool, which does not move on meanwhile");
  std::vector<std::size_t> done;
  const auto look = [&] {
    for (std::size_t i = 0; i < futures.size(); ++i)
      if (futures[i]->task_->pool == nullptr) done.push_back(i);
    return !done.empty();
  };
  (void)inside_->wait(look, Deadline::in_seconds(timeout_s));
  return done;
}

void Pool::shutdown() { inside_->shut_down(); }
EventLog& Pool::events() { return inside_->events(); }

PoolStatus Pool::status() {
  inside_->move_on(0.0);
  inside_->run_due();
  return inside_->status();
}

std::vector<PoolWorker> Pool::workers() {
  inside_->move_on(0.0);
  inside_->run_due();
  return inside_->workers();
}

}  // namespace miniray
