#include "miniray/pool.hpp"

#include <algorithm>

#include "calls/call_failures.hpp"
#include "tasks/pool_driver.hpp"

namespace miniray {

TaskFutureBase::TaskFutureBase(std::shared_ptr<PendingTask> task) : RemoteFutureBase(std::move(task)) {}
const PendingTask& TaskFutureBase::task() const { return static_cast<const PendingTask&>(*pending()); }

void PendingTask::wait_any(std::span<const std::shared_ptr<Pending>> group, std::optional<double> timeout_s) {
  const auto one_is_done = [&] { return std::ranges::any_of(group, [](const auto& task) { return task->done(); }); };
  (void)pool.wait(one_is_done, Deadline::in_seconds(timeout_s));
}

PoolView::PoolView(PoolDriver& driver, const TaskOptions& options) : driver_(&driver), terms_(driver.terms(options)) {}

PoolView PoolView::with(const TaskOptions& options) const { return {*driver_, options}; }

std::shared_ptr<PendingTask> PoolView::begin(std::string_view function, List arguments, Value keywords) const {
  const auto task = std::make_shared<PendingTask>(*driver_, std::string(detail::spoken_name(function)));
  const Value body = call_body(function, std::move(arguments), std::move(keywords), terms_->memory_bytes);
  try {
    task->number = driver_->next_number();
    driver_->submit(task, CallVerb::call, body, terms_);
  } catch (const Unsendable& error) {
    unsendable_argument(task->function, body.at(1).list(), error);
  }
  driver_->move_on();
  return task;
}

List PoolView::map_values(std::string_view function, List items, const MapOptions& options) const {
  return map_in_chunks(*driver_, terms_, std::string(function), std::move(items), options);
}

Pool::Pool(std::unique_ptr<PoolDriver> driver) : PoolView(*driver, {}), driver_(std::move(driver)) {}
Pool::Pool(int workers, const PoolOptions& options)
    : Pool(std::make_unique<PoolDriver>(forked_crew(workers, options), options)) {}
Pool::Pool(Cluster& cluster, const PoolOptions& options)
    : Pool(std::make_unique<PoolDriver>(cluster_crew(cluster, options), options)) {}
Pool::Pool(std::vector<Worker> workers, const PoolOptions& options)
    : Pool(std::make_unique<PoolDriver>(given_crew(std::move(workers), options), options)) {}
Pool::~Pool() = default;

std::vector<std::size_t> Pool::wait_any(std::span<const TaskFutureBase* const> futures, Timeout timeout_s) {
  if (futures.empty()) throw UsageError("wait_any was given nothing to wait for");
  for (const TaskFutureBase* future : futures)
    if (&future->task().pool != driver_.get() && !future->pending()->done())
      throw UsageError("wait_any was given a future of another pool, which does not move on meanwhile");
  std::vector<std::size_t> done;
  const auto look = [&] {
    for (std::size_t i = 0; i < futures.size(); ++i)
      if (futures[i]->pending()->done()) done.push_back(i);
    return !done.empty();
  };
  driver_->move_on();
  (void)driver_->wait(look, Deadline::in_seconds(timeout_s));
  return done;
}

void Pool::shutdown() { driver_->shut_down(); }
EventLog& Pool::events() { return driver_->events(); }

PoolStatus Pool::status() { return driver_->status(); }
std::vector<PoolWorker> Pool::workers() { return driver_->workers(); }

}  // namespace miniray
