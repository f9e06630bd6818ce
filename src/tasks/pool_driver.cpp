#include "tasks/pool_driver.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "calls/call_failures.hpp"

namespace miniray {
namespace {

std::exception_ptr failure_of(const TaskOutcome& outcome, CallReply& reply, const std::string& function) {
  switch (outcome.kind) {
    case TaskOutcome::Kind::reply:
      return failure_in(reply, function, outcome.worker);
    case TaskOutcome::Kind::died:
      return std::make_exception_ptr(WorkerDied(
          *outcome.certificate,
          "It died while running " + function +
              (outcome.task.tries < 2 ? "." : ", which was tried " + std::to_string(outcome.task.tries) + " times.")));
    case TaskOutcome::Kind::timed_out:
      return std::make_exception_ptr(TaskTimeout(
          function + " ran for more than " + number_text(*outcome.task.terms->timeout_s) + " s in " + outcome.worker +
          ", which was ended" + (outcome.text.empty() ? "" : ". It was doing this:\n" + outcome.text)));
    case TaskOutcome::Kind::cancelled:
      return std::make_exception_ptr(Cancelled("the task of " + function + " was cancelled"));
    case TaskOutcome::Kind::broken:
      break;
  }
  return std::make_exception_ptr(PoolBroken(outcome.text));
}

}  // namespace

bool PendingTask::wait(std::optional<double> timeout_s) {
  const PoolVisit visit(pool);
  return visit ? visit->wait([this] { return done(); }, Deadline::in_seconds(timeout_s)) : done();
}

void PendingTask::look() {
  if (const PoolVisit visit(pool); visit) visit->move_on();
}

void PendingTask::cancel() {
  const PoolVisit visit(pool);
  if (!visit) return;
  visit->cancel({number}, true);
  (void)wait({});
}

void PendingTask::on_outcome(CallReply reply, const std::exception_ptr& failure, const TaskOutcome& /*outcome*/,
                             Callbacks& due) {
  Callbacks callbacks;
  const bool settled = settle(std::move(reply.value), failure, callbacks);
  MINIRAY_CHECK(settled, number);
  std::ranges::move(callbacks, std::back_inserter(due));
}

PoolDriver::PoolDriver(Crew crew, const PoolOptions& options) : make_(std::move(crew.make)), driver_(events_) {
  for (PoolNode& node : crew.nodes) driver_.add_node(std::move(node));
  driver_.start(TaskDriver::Runs::while_its_user_waits, std::move(crew.source), options.restart);
  for (PlacedWorker& placed : crew.workers) driver_.add_worker(placed.node, std::move(placed.worker));
  for (auto& [node, link] : crew.links) driver_.set_link(node, std::move(link));
}

// Visits.

namespace {

thread_local const PoolVisit* innermost_visit = nullptr;

}  // namespace

PoolVisit::PoolVisit(const std::weak_ptr<PoolDriver>& pool, Needs needs) : pool_(pool.lock()) {
  if (!pool_ && needs == Needs::pool) throw UsageError("the pool is gone, and takes no more tasks");
  if (!pool_) return;
  if (pool_->generation_ != process_generation())
    throw UsageError(
        "the pool belongs to the process that made it, and this process is a child of that one. Make a Pool in this "
        "process");
  ++pool_->inside_;
  outer_ = std::exchange(innermost_visit, this);
}

PoolVisit::~PoolVisit() {
  if (!pool_) return;
  innermost_visit = outer_;
  --pool_->inside_;
  if (!pool_->gone_) return;
  const std::scoped_lock lock(pool_->mutex_);  // so that close() either sees it or is woken
  pool_->changed_.notify_all();
}

int PoolVisit::of_this_thread(const PoolDriver& pool) {
  int visits = 0;
  for (const PoolVisit* visit = innermost_visit; visit != nullptr; visit = visit->outer_)
    visits += visit->pool_.get() == &pool ? 1 : 0;
  return visits;
}

// Tasks.

std::shared_ptr<const TaskTerms> PoolDriver::terms(const TaskOptions& options) const {
  return driver_.terms({{options.num_cpus, options.num_gpus, options.resources, options.node, options.strategy},
                        options.timeout_s,
                        options.retries,
                        options.memory_bytes});
}

void PoolDriver::require_open() const {
  if (const std::optional<std::string> why = driver_.broken()) throw PoolBroken(*why);
  if (driver_.refuses_tasks()) throw UsageError("the pool has been shut down, and takes no more tasks");
}

void PoolDriver::submit(const std::shared_ptr<TaskOwner>& owner, CallVerb verb, const Value& body,
                        std::shared_ptr<const TaskTerms> terms, bool of_map) {
  MINIRAY_CHECK(owner->number > 0, owner->number);
  Task task;
  task.number = owner->number;
  task.of_map = of_map;
  task.call = call_message(verb, body, task.number);
  task.terms = std::move(terms);
  const std::scoped_lock lock(mutex_);
  MINIRAY_CHECK(!of_map || maps_ > 0);
  if (of_map && gone_) throw_gone();
  if (!of_map) require_open();
  task.large = large_buffers_.own_buffers(task.call);
  under_way_.emplace(task.number, owner);
  const bool taken = driver_.submit(std::move(task));
  MINIRAY_CHECK(taken);
}

void PoolDriver::begin_map() {
  const std::scoped_lock lock(mutex_);
  require_open();
  ++maps_;
}

void PoolDriver::end_map() {
  {
    const std::scoped_lock lock(mutex_);
    MINIRAY_CHECK(maps_ > 0);
    --maps_;
  }
  driver_.nudge();  // a thread that shuts the pool down may wait for it, and lead
}

void PoolDriver::cancel(std::vector<std::int64_t> numbers, bool even_if_they_run) {
  (void)driver_.post_and_tell([numbers = std::move(numbers), even_if_they_run](TaskEngine& engine) {
    for (const std::int64_t number : numbers) engine.cancel(number, even_if_they_run, Closing::kill);
  });
}

void PoolDriver::settle(const TaskOutcome& outcome, Callbacks& due) {
  const auto found = under_way_.find(outcome.task.number);
  if (found == under_way_.end()) return;
  const std::shared_ptr<TaskOwner> owner = std::move(found->second);
  under_way_.erase(found);
  CallReply reply;
  std::exception_ptr failure;
  try {
    if (outcome.kind == TaskOutcome::Kind::reply) reply = parse_reply(outcome.reply);
    failure = failure_of(outcome, reply, owner->called());
  } catch (const std::exception&) {  // the body is not what a worker should send, or there is no memory for it
    failure = std::current_exception();
  }
  if (failure && ending_of(outcome) == Ending::done && !outcome.task.of_map) tally().count_unreadable();
  owner->on_outcome(std::move(reply), failure, outcome, due);
}

// Waiting.

void PoolDriver::lead(Lock& lock, std::optional<double> timeout_s) {
  MINIRAY_CHECK(!led_ && lock.owns_lock());
  led_ = true;
  lock.unlock();
  std::optional<TaskDriver::News> news;
  std::exception_ptr interrupt;
  try {
    news = driver_.wait_news(Deadline::in_seconds(timeout_s));
    if (news)
      for (const std::shared_ptr<Ticket>& ticket : news->tickets) answer(*ticket);
  } catch (...) {
    interrupt = std::current_exception();
  }
  lock.lock();
  Callbacks due;
  try {
    if (news)
      for (const TaskOutcome& outcome : news->outcomes) settle(outcome, due);
  } catch (...) {  // the other threads must not wait for this one for ever
    if (!interrupt) interrupt = std::current_exception();
  }
  led_ = false;
  changed_.notify_all();
  lock.unlock();
  run(due);
  if (interrupt) std::rethrow_exception(interrupt);
  lock.lock();
}

void PoolDriver::follow(Lock& lock, const Deadline& deadline) {
  if (const std::optional<double> left_s = deadline.seconds_left())
    (void)changed_.wait_for(lock, std::chrono::duration<double>(*left_s));
  else
    changed_.wait(lock);
}

void PoolDriver::move_on() {
  Lock lock(mutex_);
  if (!led_ && !closed_ && !gone_) lead(lock, 0.0);
}

template <class Question>
auto PoolDriver::ask(Question question) {
  return driver_.ask(std::move(question),
                     [this](const auto& answered) { (void)this->wait(answered, Deadline::never()); });
}

void PoolDriver::answer(Ticket& ticket) {
  try {
    ticket.fill(std::make_shared<Worker>(make_(*ticket.gone)));
  } catch (const std::exception& error) {
    ticket.fail(error.what());
  }
}

// The end.

void PoolDriver::shut_down() {
  {
    const std::scoped_lock lock(mutex_);
    driver_.refuse_tasks();
    if (closed_) return;
  }
  (void)wait([this] { return gone_ || (under_way_.empty() && maps_ == 0); }, Deadline::never());
  {
    const std::scoped_lock lock(mutex_);
    if (gone_) return;                         // whoever destroys the pool ends the workers
    if (std::exchange(closed_, true)) return;  // another thread has shut it down meanwhile
  }
  end_workers(Closing::finish);
}

void PoolDriver::throw_gone() { throw Cancelled("the pool is gone, and did not finish this"); }

// In a child of the process that made the pool, other threads do not exist, and the lock may be held forever.
void PoolDriver::close() {
  const bool is_ours = generation_ == process_generation();
  Callbacks not_called;  // what they hold is told at the end, without the lock
  std::unordered_map<std::int64_t, std::shared_ptr<TaskOwner>> dropped;
  Lock lock(mutex_, std::defer_lock);
  if (is_ours) lock.lock();
  if (gone_.exchange(true)) return;
  if (is_ours) driver_.refuse_tasks();  // a coroutine that goes on because of this may submit tasks, and is told
  dropped.swap(under_way_);
  const auto gone = std::make_exception_ptr(Cancelled("the pool is gone, and did not finish this task"));
  TaskOutcome cancelled;
  cancelled.kind = TaskOutcome::Kind::cancelled;
  for (const auto& [number, owner] : dropped) owner->on_outcome({}, gone, cancelled, not_called);
  changed_.notify_all();
  try {
    if (is_ours) {
      driver_.nudge();  // the thread that leads looks again
      changed_.wait(lock, [this] { return inside_ == PoolVisit::of_this_thread(*this); });
      lock.unlock();
    }
    end_workers(dropped.empty() ? Closing::finish : Closing::interrupt);
  } catch (...) {  // an interrupt; the workers have ended
  }
}

void PoolDriver::end_workers(Closing how) {
  driver_.hurry(how);
  driver_.stop();
}

std::size_t PoolDriver::worker_count() {
  return ask([](const TaskEngine& engine) { return engine.census().workers; });
}

PoolStatus PoolDriver::status() {
  const auto census = ask([](const TaskEngine& engine) { return engine.census(); });
  return {census.waiting, census.running, tally().done(), tally().failed(), census.workers, census.idle};
}

std::vector<PoolWorker> PoolDriver::workers() {
  std::vector<PoolWorker> all;
  for (const auto& worker : ask([](const TaskEngine& engine) { return engine.workers(); }))
    all.push_back({worker.name, worker.node, worker.state, worker.pid, worker.tasks});
  return all;
}

}  // namespace miniray
