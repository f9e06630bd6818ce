#include "tasks/pool_inside.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calls/call_desk.hpp"

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

PoolInside::PoolInside(std::unique_ptr<PoolWorkers> source, const PoolOptions& options)
    : source_(std::move(source)), engine_(engine_options()) {
  if (options.restart) budget_.emplace(*options.restart);
  for (const PoolNode& node : source_->nodes())
    engine_.add_node(node.name, NodeResources(node.cpus, node.gpu_names.size(), node.custom), node.gpu_names);
  for (PlacedWorker& placed : source_->first()) join(std::move(placed));
  for (std::size_t node = 0; node < source_->nodes().size(); ++node) link(node);
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

TaskEngine::Options PoolInside::engine_options() {
  TaskEngine::Options options;
  options.on_event = [this](const PoolEvent& event) {
    if (event.kind == "pool_broken") broken_ = event.text;
    events_.add({.kind = event.kind,
                 .node = event.node,
                 .worker = event.worker,
                 .text = event.text,
                 .details = event.task == 0 ? Value() : Value{{"task", event.task}}});
  };
  options.on_vacancy = [this](std::size_t node, std::shared_ptr<Worker> gone) {
    vacancies_.push_back({node, std::move(gone)});
  };
  return options;
}

void PoolInside::join(PlacedWorker placed) {
  engine_.add_worker(placed.node, std::move(placed.worker), placed.shares_clock);
}

// Without one, each worker gets its own copy of what is large.
void PoolInside::link(std::size_t node) {
  if (std::optional<Channel> link = source_->new_link(node)) engine_.set_link(node, std::move(*link));
}

// Tasks.

std::shared_ptr<const TaskTerms> PoolInside::terms(const TaskOptions& options) const {
  auto made = std::make_shared<TaskTerms>();
  made->demand = {options.num_cpus, options.num_gpus, options.resources, options.node, options.strategy};
  check(made->demand);
  if (options.timeout_s && !(*options.timeout_s > 0))
    throw UsageError("timeout_s is a number of seconds above 0, not " + std::to_string(*options.timeout_s));
  if (options.retries < 0) throw UsageError("retries is 0 or more, not " + std::to_string(options.retries));
  made->timeout_s = options.timeout_s;
  made->retries = options.retries;
  if (const std::string obstacle = engine_.obstacle_to(made->demand); !obstacle.empty()) throw UsageError(obstacle);
  return made;
}

void PoolInside::require_open() const {
  if (broken_) throw PoolBroken(*broken_);
  if (closed_) throw UsageError("the pool has been shut down, and takes no more tasks");
}

void PoolInside::submit(const std::shared_ptr<TaskOwner>& owner, CallVerb verb, const Value& body,
                        std::shared_ptr<const TaskTerms> terms) {
  require_open();
  Task task;
  task.number = owner->number = ++last_number_;
  task.call = call_message(verb, body, task.number);
  task.large = large_buffers_.own_buffers(task.call);
  task.terms = std::move(terms);
  under_way_.emplace(task.number, owner);
  engine_.submit(std::move(task));
}

void PoolInside::cancel(std::int64_t number) {
  engine_.cancel(number);
  settle_all();
}

void PoolInside::settle_all() {
  for (const TaskOutcome& outcome : engine_.take_outcomes()) settle(outcome);
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

void PoolInside::run_due() {
  while (!due_.empty()) {
    const std::function<void()> callback = std::move(due_.front());
    due_.pop_front();
    callback();
  }
}

void PoolInside::move_on(std::optional<double> timeout_s) {
  if (closed_) return;
  (void)fill_places();
  engine_.turn(seconds_to_next_attempt(timeout_s.value_or(-1)));
  settle_all();
  if (!fill_places()) return;
  engine_.turn(0);  // whoever is new gets something to do
  settle_all();
}

// Places.

// True if somebody is new.
bool PoolInside::fill_places() {
  bool filled = false;
  for (Vacancy& vacancy : std::exchange(vacancies_, {})) {
    Attempts& attempts = attempts_[vacancy.node];
    if (now_ns() >= attempts.not_before_ns) {
      const std::optional<double> pause_s = pause_before(vacancy);
      if (!pause_s) continue;  // it stays empty
      if (*pause_s == 0) {
        filled = fill(vacancy, attempts) || filled;
        continue;
      }
      attempts.not_before_ns = now_ns() + static_cast<std::int64_t>(*pause_s * 1e9);
    }
    vacancies_.push_back(std::move(vacancy));
  }
  return filled;
}

// Nothing if the place is not to be filled.
std::optional<double> PoolInside::pause_before(Vacancy& vacancy) {
  if (broken_) return std::nullopt;
  if (std::exchange(vacancy.granted, true)) return 0;
  if (const std::string why_not = source_->why_not_replaced(); !why_not.empty()) {
    refuse(vacancy.node, why_not);
    return std::nullopt;
  }
  if (!budget_) return 0;
  const std::optional<double> pause_s = budget_->take(static_cast<double>(now_ns()) / 1e9);
  if (!pause_s) refuse(vacancy.node, budget_->refusal());
  return pause_s;
}

void PoolInside::refuse(std::size_t node, const std::string& why) {
  events_.add({.kind = "restart_refused", .node = source_->nodes()[node].name, .text = why});
  if (engine_.census().workers == 0 && vacancies_.empty())
    return engine_.break_down("no worker is left, and none takes the place of the last one: " + why);
  if (std::ranges::find(vacancies_, node, &Vacancy::node) == vacancies_.end()) engine_.give_up_node(node, why);
}

// Where a node is gone, an attempt takes its time, and meanwhile nothing else moves: so the pause is longer.
bool PoolInside::fill(const Vacancy& vacancy, Attempts& attempts) {
  const std::string& node = source_->nodes()[vacancy.node].name;
  const std::int64_t begun_ns = now_ns();
  try {
    join(source_->replace(vacancy.node, *vacancy.gone));
    link(vacancy.node);
    if (std::exchange(attempts, {}).lost) events_.add({.kind = "node_back", .node = node});
    return true;
  } catch (const std::exception& error) {
    if (!attempts.lost) events_.add({.kind = "node_lost", .node = node, .text = error.what()});
    const double took_s = static_cast<double>(now_ns() - begun_ns) / 1e9;
    attempts.lost = true;
    attempts.pause_s = std::clamp(std::max(2 * attempts.pause_s, 4 * took_s), limits::pool_pause_ms / 1000.0,
                                  limits::pool_pause_max_ms / 1000.0);
    attempts.not_before_ns = now_ns() + static_cast<std::int64_t>(attempts.pause_s * 1e9);
    vacancies_.push_back(vacancy);
    return false;
  }
}

double PoolInside::seconds_to_next_attempt(double at_most) const {
  double wait_s = at_most;
  for (const Vacancy& vacancy : vacancies_) {
    const auto known = attempts_.find(vacancy.node);
    const std::int64_t at_ns = known == attempts_.end() ? 0 : known->second.not_before_ns;
    const double left_s = std::max(0.0, static_cast<double>(at_ns - now_ns()) / 1e9);
    wait_s = wait_s < 0 ? left_s : std::min(wait_s, left_s);
  }
  return wait_s;
}

// The end.

void PoolInside::shut_down() {
  (void)wait([this] { return under_way_.empty(); }, Deadline::never());
  end_workers(Closing::finish);
}

void PoolInside::end_workers(Closing how) {
  if (std::exchange(closed_, true)) return;
  vacancies_.clear();
  const std::vector<std::shared_ptr<Worker>> workers = engine_.dismiss();
  std::vector<Worker*> all;
  for (const std::shared_ptr<Worker>& worker : workers) all.push_back(worker.get());
  close_all(all, how);
}

PoolStatus PoolInside::status() const {
  const TaskEngine::Census census = engine_.census();
  return {census.waiting, census.running, done_, failed_, census.workers, census.idle};
}

std::vector<PoolWorker> PoolInside::workers() const {
  std::vector<PoolWorker> all;
  for (const TaskEngine::WorkerStatus& worker : engine_.workers())
    all.push_back({worker.name, worker.node, worker.state, worker.pid, worker.tasks});
  return all;
}

}  // namespace miniray
