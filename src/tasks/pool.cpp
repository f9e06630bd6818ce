#include "miniray/pool.hpp"

#include <algorithm>

#include "calls/call_failures.hpp"
#include "tasks/pool_driver.hpp"

namespace miniray {

TaskFutureBase::TaskFutureBase(std::shared_ptr<PendingTask> task) : RemoteFutureBase(std::move(task)) {}
const PendingTask& TaskFutureBase::task() const { return static_cast<const PendingTask&>(*pending()); }

void PendingTask::wait_any(std::span<const std::shared_ptr<Pending>> group, std::optional<double> timeout_s) {
  const PoolVisit visit(pool);
  if (!visit) return;
  const auto one_is_done = [&] { return std::ranges::any_of(group, [](const auto& task) { return task->done(); }); };
  (void)visit->wait(one_is_done, Deadline::in_seconds(timeout_s));
}

PoolView::PoolView(const std::shared_ptr<PoolDriver>& driver, const TaskOptions& options)
    : driver_(driver), terms_(driver->terms(options)) {}

PoolView PoolView::with(const TaskOptions& options) const {
  const PoolVisit visit(driver_, PoolVisit::Needs::pool);
  return {visit.pool(), options};
}

std::shared_ptr<PendingTask> PoolView::begin(std::string_view function, List arguments, Value keywords) const {
  const PoolVisit visit(driver_, PoolVisit::Needs::pool);
  const auto task = std::make_shared<PendingTask>(visit.pool(), std::string(detail::spoken_name(function)));
  const Value body = call_body(function, std::move(arguments), std::move(keywords), terms_->memory_bytes);
  try {
    task->number = PoolDriver::next_number();
    visit->submit(task, CallVerb::call, body, terms_);
  } catch (const Unsendable& error) {
    unsendable_argument(task->function, body.at(1).list(), error);
  }
  visit->move_on();
  return task;
}

List PoolView::map_values(std::string_view function, List items, const MapOptions& options) const {
  const PoolVisit visit(driver_, PoolVisit::Needs::pool);
  return map_in_chunks(*visit.pool(), terms_, std::string(function), std::move(items), options);
}

Pool::Pool(std::shared_ptr<PoolDriver> driver) : PoolView(driver, {}), driver_(std::move(driver)) {}
Pool::Pool(int workers, const PoolOptions& options)
    : Pool(std::make_shared<PoolDriver>(forked_crew(workers, options), options)) {}
Pool::Pool(Cluster& cluster, const PoolOptions& options)
    : Pool(std::make_shared<PoolDriver>(cluster_crew(cluster, options), options)) {}
Pool::Pool(std::vector<Worker> workers, const PoolOptions& options)
    : Pool(std::make_shared<PoolDriver>(given_crew(std::move(workers), options), options)) {}
Pool::~Pool() { driver_->close(); }

std::vector<std::size_t> Pool::wait_any(std::span<const TaskFutureBase* const> futures, Timeout timeout_s) {
  if (futures.empty()) throw UsageError("wait_any was given nothing to wait for");
  const PoolVisit visit(driver_);
  for (const TaskFutureBase* future : futures)
    if (future->task().group() != driver_.get() && !future->pending()->done())
      throw UsageError("wait_any was given a future of another pool, which does not move on meanwhile");
  std::vector<std::size_t> done;
  const auto look = [&] {
    for (std::size_t i = 0; i < futures.size(); ++i)
      if (futures[i]->pending()->done()) done.push_back(i);
    return !done.empty();
  };
  visit->move_on();
  (void)visit->wait(look, Deadline::in_seconds(timeout_s));
  return done;
}

void Pool::shutdown() { PoolVisit(driver_)->shut_down(); }
EventLog& Pool::events() { return driver_->events(); }

PoolStatus Pool::status() { return PoolVisit(driver_)->status(); }
std::vector<PoolWorker> Pool::workers() { return PoolVisit(driver_)->workers(); }

}  // namespace miniray
