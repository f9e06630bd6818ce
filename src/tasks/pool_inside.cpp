#include "tasks/pool_inside.hpp"

#include <utility>

#include "base/check.hpp"
#include "calls/call_failures.hpp"

namespace miniray {
namespace {

std::string seconds_text(double seconds) {
  std::string text = Value(seconds).text();
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::exception_ptr failure_of(const TaskOutcome& outcome, CallReply& reply, const std::string& function) {
  switch (outcome.kind) {
    case TaskOutcome::Kind::reply:
      return failure_in(reply, function, outcome.worker);
    case TaskOutcome::Kind::died:
      if (outcome.task.tries < 2) return std::make_exception_ptr(WorkerDied(*outcome.certificate));
      return std::make_exception_ptr(WorkerDied(
          *outcome.certificate,
          "It had a task of " + function + ", which was tried " + std::to_string(outcome.task.tries) + " times."));
    case TaskOutcome::Kind::timed_out:
      return std::make_exception_ptr(TaskTimeout(
          function + " ran for more than " + seconds_text(*outcome.task.terms->timeout_s) + " s in " + outcome.worker +
          ", which was ended" + (outcome.text.empty() ? "" : ". It was doing this:\n" + outcome.text)));
    case TaskOutcome::Kind::cancelled:
      return std::make_exception_ptr(Cancelled("the task of " + function + " was cancelled"));
    case TaskOutcome::Kind::broken:
      break;
  }
  return std::make_exception_ptr(PoolBroken(outcome.text));
}

}  // namespace

void PendingTask::settle(CallReply reply, const std::exception_ptr& why, const std::string& /*worker*/) {
  value = std::move(reply.value);
  failure = why;
  for (auto& callback : std::exchange(callbacks, {})) pool->add_due(std::move(callback));
  pool = nullptr;
}

PoolInside::PoolInside(Crew crew, const PoolOptions& options) : make_(std::move(crew.make)), driver_(events_) {
  for (PoolNode& node : crew.nodes) driver_.add_node(std::move(node));
  driver_.start(TaskDriver::Runs::while_its_user_waits, std::move(crew.source), options.restart);
  for (PlacedWorker& placed : crew.workers) driver_.add_worker(placed.node, std::move(placed.worker));
  for (auto& [node, link] : crew.links) driver_.set_link(node, std::move(link));
}

PoolInside::~PoolInside() {
  due_.clear();
  const bool dropped = !under_way_.empty();
  const auto gone = std::make_exception_ptr(Cancelled("the pool is gone, and did not finish this task"));
  for (const auto& [number, owner] : std::exchange(under_way_, {})) owner->settle({}, gone, {});
  due_.clear();  // callbacks are not called any more
  try {
    end_workers(dropped ? Closing::interrupt : Closing::finish);
  } catch (const std::exception&) {  // an interrupt; the workers have ended
  }
}

// Tasks.

std::shared_ptr<const TaskTerms> PoolInside::terms(const TaskOptions& options) const {
  return driver_.terms({{options.num_cpus, options.num_gpus, options.resources, options.node, options.strategy},
                        options.timeout_s,
                        options.retries,
                        options.memory_bytes});
}

void PoolInside::require_open() const {
  if (const std::optional<std::string> why = driver_.broken()) throw PoolBroken(*why);
  if (closed_) throw UsageError("the pool has been shut down, and takes no more tasks");
}

void PoolInside::submit(const std::shared_ptr<TaskOwner>& owner, CallVerb verb, const Value& body,
                        std::shared_ptr<const TaskTerms> terms) {
  require_open();
  Task task;
  task.number = owner->number = driver_.next_number();
  task.call = call_message(verb, body, task.number);
  task.large = large_buffers_.own_buffers(task.call);
  task.terms = std::move(terms);
  under_way_.emplace(task.number, owner);
  const bool taken = driver_.submit(std::move(task));
  MINIRAY_CHECK(taken);
}

void PoolInside::cancel(std::int64_t number) {
  driver_.cancel(number, true);
  move_on(0.0);
}

void PoolInside::settle(const TaskOutcome& outcome) {
  const auto found = under_way_.find(outcome.task.number);
  if (found == under_way_.end()) return;
  const std::shared_ptr<TaskOwner> owner = std::move(found->second);
  under_way_.erase(found);
  CallReply reply;
  std::exception_ptr failure;
  try {
    if (outcome.kind == TaskOutcome::Kind::reply) reply = parse_reply(outcome.reply);
    failure = failure_of(outcome, reply, owner->function);
  } catch (const Error&) {  // its head was right, and the rest is none that a worker should send
    failure = std::current_exception();
  }
  ++(failure ? failed_ : done_);
  owner->settle(std::move(reply), failure, outcome.worker);
}

double PoolInside::mean_ns(const std::string& function) const {
  const auto known = means_ns_.find(function);
  return known == means_ns_.end() ? 0 : known->second;
}

void PoolInside::note_mean(const std::string& function, double ns) {
  if (means_ns_.size() >= limits::means_max && !means_ns_.contains(function)) means_ns_.clear();
  means_ns_[function] = ns;
}

void PoolInside::run_due() {
  while (!due_.empty()) {
    const std::function<void()> callback = std::move(due_.front());
    due_.pop_front();
    callback();
  }
}

void PoolInside::move_on(std::optional<double> timeout_s) {
  if (closed_) return;
  const std::optional<TaskDriver::News> news = driver_.wait_news(Deadline::in_seconds(timeout_s));
  if (!news) return;
  for (const TaskOutcome& outcome : news->outcomes) settle(outcome);
  for (const std::shared_ptr<Ticket>& ticket : news->tickets) answer(*ticket);
}

void PoolInside::answer(Ticket& ticket) {
  try {
    ticket.fill(std::make_shared<Worker>(make_(*ticket.gone)));
  } catch (const std::exception& error) {
    ticket.fail(error.what());
  }
}

// The end.

void PoolInside::shut_down() {
  (void)wait([this] { return under_way_.empty(); }, Deadline::never());
  end_workers(Closing::finish);
}

void PoolInside::end_workers(Closing how) {
  if (std::exchange(closed_, true)) return;
  driver_.hurry(how);
  driver_.stop();
}

PoolStatus PoolInside::status() {
  const TaskEngine::Census census = driver_.census();
  return {census.waiting, census.running, done_, failed_, census.workers, census.idle};
}

std::vector<PoolWorker> PoolInside::workers() {
  std::vector<PoolWorker> all;
  for (const TaskEngine::WorkerStatus& worker : driver_.workers())
    all.push_back({worker.name, worker.node, worker.state, worker.pid, worker.tasks});
  return all;
}

}  // namespace miniray
