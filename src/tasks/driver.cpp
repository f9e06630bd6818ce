#include "tasks/driver.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"
#include "miniray/error.hpp"

namespace miniray {

void close_together(const std::vector<std::shared_ptr<Worker>>& workers, const Urgency& urgency) {
  std::vector<Worker*> all;
  for (const std::shared_ptr<Worker>& worker : workers) all.push_back(worker.get());
  CloseOptions options;
  options.urgency = urgency.get();
  try {
    Closer(all, options).run();
  } catch (const Error&) {  // the end became more urgent, and the workers have ended
  }
}

TaskDriver::TaskDriver(EventLog& events) : events_(events) {
  ChannelOptions quiet;
  quiet.spin_us = 0;
  auto [here, there] = Channel::pair(quiet);
  waker_ = std::make_unique<Channel>(std::move(here));
  bell_ = std::make_unique<Channel>(std::move(there));
}

namespace {

void add_to(TaskEngine& engine, const PoolNode& node) {
  engine.add_node(node.name, NodeResources(node.cpus, node.gpu_names.size(), node.custom), node.gpu_names);
}

}  // namespace

void TaskDriver::add_node(PoolNode node) {
  MINIRAY_CHECK(!engine_);
  nodes_.push_back(std::move(node));
}

void TaskDriver::start(Runs runs, std::unique_ptr<WorkerSource> source, const std::optional<RestartPolicy>& policy,
                       std::optional<Task> initializer, bool pickle) {
  MINIRAY_CHECK(!engine_);
  TaskEngine::Options options;
  options.initializer = std::move(initializer);
  options.pickle = pickle;
  options.on_event = [this](const PoolEvent& event) { note(event); };
  options.on_vacancy = [this](std::size_t node, std::shared_ptr<Worker> gone) {
    staff_->on_gone(node, std::move(gone));
  };
  options.on_unknown = [this](const TaskFunction& function) { fresh_.unknown_functions.push_back(function.number); };
  source_ = std::move(source);
  source_->on_ticket = [this](std::shared_ptr<Ticket> ticket) {
    ticket->on_answer = [this] { post([this](TaskEngine&) { staff_->look_now(); }); };
    fresh_.tickets.push_back(std::move(ticket));
  };
  engine_ = std::make_unique<TaskEngine>(std::move(options));
  for (const PoolNode& node : nodes_) add_to(*engine_, node);
  staff_ = std::make_unique<Staff>(*engine_, *source_, events_, policy);
  runs_ = runs;
  if (runs == Runs::in_a_thread) thread_ = std::thread([this] { run(); });
}

void TaskDriver::note(const PoolEvent& event) {
  if (event.kind == "pool_broken") {
    const std::scoped_lock lock(broken_mutex_);
    broken_ = event.text;
    is_broken_ = true;
  }
  if (event.kind == "worker_stillborn") staff_->stillborn(event.text);
  events_.add({.kind = event.kind,
               .node = event.node,
               .worker = event.worker,
               .text = event.text,
               .details = event.task == 0 ? Value() : Value{{"task", event.task}}});
  fresh_.noted = true;
}

std::optional<std::string> TaskDriver::broken() const {
  if (!is_broken_) return std::nullopt;
  const std::scoped_lock lock(broken_mutex_);
  return broken_;
}

void TaskDriver::add_worker(std::size_t node, std::shared_ptr<Worker> worker, bool may_be_silent) {
  MINIRAY_CHECK(worker && source_ && node < nodes_.size(), node);
  const bool shares_clock = source_->shares_clock(*worker);
  post([node, worker = std::move(worker), shares_clock, may_be_silent](TaskEngine& engine) {
    engine.add_worker(node, worker, shares_clock, may_be_silent);
  });
}

void TaskDriver::set_link(std::size_t node, Channel link) {
  auto taken = std::make_shared<Channel>(std::move(link));
  post([node, taken](TaskEngine& engine) { engine.set_link(node, std::move(*taken)); });
}

std::shared_ptr<const TaskTerms> TaskDriver::terms(TaskTerms terms) const {
  check(terms.demand);
  if (terms.timeout_s && !(*terms.timeout_s > 0))
    throw UsageError("a task's time-out is a number of seconds above 0, not " + number_text(*terms.timeout_s));
  if (terms.retries < 0) throw UsageError("retries is 0 or more, not " + std::to_string(terms.retries));
  if (terms.memory_bytes == std::uint64_t{0}) throw UsageError("memory_bytes is 1 or more, not 0");
  TaskEngine probe({});
  for (const PoolNode& node : nodes_) add_to(probe, node);
  if (const std::string obstacle = probe.obstacle_to(terms.demand); !obstacle.empty()) throw UsageError(obstacle);
  return std::make_shared<const TaskTerms>(std::move(terms));
}

template <class Question>
auto TaskDriver::ask(Question question) {
  MINIRAY_CHECK(has_thread());
  return ask(std::move(question), [](const auto& /*answered*/) {});
}

// Tasks.

bool TaskDriver::submit(Task task) {
  MINIRAY_CHECK(task.number > 0 && task.terms, task.number);
  const std::scoped_lock lock(mutex_);  // every thread holds it only briefly
  if (stopping_ || !engine_ || ending_ || (refusing_ && !task.of_map)) return false;
  ++outstanding_;
  incoming_.push_back(std::move(task));
  ring();
  return true;
}

void TaskDriver::submit_again(Task task) {
  MINIRAY_CHECK(!task.of_map, task.number);  // a map sends its items again as new tasks
  tally_.uncount_failure();
  ++task.tries;
  const std::scoped_lock lock(mutex_);
  if (stopping_ || !engine_) return;
  ++outstanding_;
  again_.push_back(std::move(task));
  ring();
}

void TaskDriver::cancel(std::int64_t number, bool even_if_it_runs, Closing how) {
  (void)ask([=](TaskEngine& engine) {
    engine.cancel(number, even_if_it_runs, how);
    return true;
  });
}

void TaskDriver::cancel_waiting() {
  post([](TaskEngine& engine) { engine.cancel_waiting(); });
}

void TaskDriver::cancel_all() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  post([](TaskEngine& engine) { engine.cancel_all(); });
}

void TaskDriver::redefine(std::shared_ptr<TaskFunction> function, Message definition, const TaskNeeds& needs) {
  auto defined = std::make_shared<Message>(std::move(definition));
  post([function = std::move(function), defined, needs](TaskEngine& engine) {
    function->definition = std::move(*defined);
    function->by_value = true;
    function->needs.assign(needs.begin(), needs.end());
    ++function->revision;
    engine.defined(*function);
  });
}

void TaskDriver::change_needs(std::shared_ptr<TaskNeeds> needs, TaskNeeds changed) {
  post([needs = std::move(needs), changed = std::move(changed)](TaskEngine&) { *needs = changed; });
}

// To the engine's thread, and from it.

// Wakes the engine if it sleeps. The caller holds the lock.
void TaskDriver::ring() {
  if (!asleep_ || bell_ == nullptr || std::exchange(rung_, true)) return;
  (void)bell_->send_some(encode(Value()));
}

bool TaskDriver::post(Command command) {
  const std::scoped_lock lock(mutex_);
  if (stopping_ || !engine_) return false;
  commands_.push_back(std::move(command));
  ring();
  return true;
}

bool TaskDriver::is_running(std::int64_t number) {
  return ask([=](const TaskEngine& engine) { return engine.is_running(number); });
}

TaskEngine::Census TaskDriver::census() {
  return ask([](const TaskEngine& engine) { return engine.census(); });
}

std::vector<TaskEngine::WorkerStatus> TaskDriver::workers() {
  return ask([](const TaskEngine& engine) { return engine.workers(); });
}

// Returns false if the engine is to stop.
bool TaskDriver::take_orders() {
  std::vector<Task> incoming, again;
  std::vector<Command> commands;
  bool stopping = false;
  {
    const std::scoped_lock lock(mutex_);
    incoming.swap(incoming_);
    again.swap(again_);
    commands.swap(commands_);
    stopping = stopping_;
    asleep_ = true;
    rung_ = false;
  }
  // An order that fails must not take the others with it.
  std::exception_ptr failure;
  const auto carry_out = [&](const auto& order) {
    try {
      order();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  for (Task& task : incoming) carry_out([&] { engine_->submit(std::move(task)); });
  for (Task& task : again) carry_out([&] { engine_->submit_again(std::move(task)); });
  for (const Command& command : commands) carry_out([&] { command(*engine_); });
  if (failure) std::rethrow_exception(failure);
  return !stopping;
}

void TaskDriver::replace() {
  if (!staff_->is_busy()) return;
  const std::size_t events = events_.added();
  staff_->advance();
  fresh_.noted = fresh_.noted || events_.added() != events;
}

// Returns false if the engine is to stop.
bool TaskDriver::step() {
  if (!take_orders()) return false;
  if (!failed_) replace();
  publish();  // what the orders had to tell must not wait for a poll
  if (failed_) {
    (void)waker_->receive();
    return true;
  }
  engine_->poll(staff_->seconds_to_next_look(-1), waker_.get());
  publish();
  return true;
}

namespace {

// Returns the type and the text of the exception that is being handled.
std::string current_failure() {
  try {
    throw;
  } catch (const std::exception& error) {
    return type_name(error) + ": " + error.what();
  } catch (...) {
    return "an exception that does not derive from std::exception";
  }
}

}  // namespace

// No exception may end the thread: it would end the process, or leave futures that nobody settles. What one worker
// sends is an error of that worker; what comes this far is no worker's, such as no memory at all.
void TaskDriver::run() {
  bool goes_on = true;
  while (goes_on) {
    try {
      goes_on = step();
    } catch (...) {
      goes_on = !failed_;
      fail(current_failure());
    }
  }
  try {
    end();
  } catch (...) {
    log(LogLevel::error, "the end of a pool failed: " + current_failure());
    const std::scoped_lock lock(news_mutex_);
    ended_ = true;
  }
  news_came_.notify_all();
}

void TaskDriver::fail(const std::string& why) {
  failed_ = true;
  try {
    log(LogLevel::error, "a pool cannot go on: " + why);
    engine_->fail("the pool cannot go on: " + why);
    publish();
  } catch (const std::exception&) {  // stop() ends what is left
  }
}

void TaskDriver::break_down(const std::string& why) {
  (void)post_and_tell([why](TaskEngine& engine) { engine.fail(why); });
}

void TaskDriver::run_until_news(const Deadline& deadline) {
  if (!engine_) return;
  // Even a call that finds news takes a turn: tasks go out, whatever a program asks again and again.
  do {
    (void)take_orders();
    replace();
    publish();
    const double at_most_s = news_.empty() ? deadline.seconds_left().value_or(-1) : 0;
    engine_->poll(staff_->seconds_to_next_look(at_most_s), waker_.get());
    publish();
  } while (news_.empty() && !deadline.passed());
  const std::scoped_lock lock(mutex_);
  asleep_ = false;  // nobody is woken by the bell until the next wait, which takes orders first
}

void TaskDriver::end() {
  left_workers_ = engine_->end_workers();
  std::ranges::move(staff_->take_dead_workers(), std::back_inserter(left_workers_));
  publish();
  {
    const std::scoped_lock lock(news_mutex_);
    ended_ = true;
  }
  news_came_.notify_all();
}

void TaskDriver::publish() {
  std::vector<TaskOutcome> outcomes = engine_->take_outcomes();
  if (outcomes.empty() && fresh_.empty()) return;
  if (!outcomes.empty()) staff_->working();
  {
    const std::scoped_lock lock(news_mutex_);
    std::ranges::move(outcomes, std::back_inserter(news_.outcomes));
    std::ranges::move(fresh_.tickets, std::back_inserter(news_.tickets));
    std::ranges::move(fresh_.unknown_functions, std::back_inserter(news_.unknown_functions));
    news_.noted = news_.noted || fresh_.noted;
    news_.nudged = news_.nudged || fresh_.nudged;
  }
  fresh_ = {};
  news_came_.notify_one();
}

std::optional<TaskDriver::News> TaskDriver::wait_news(const Deadline& deadline) {
  if (!has_thread()) run_until_news(deadline);
  News news;
  {
    std::unique_lock lock(news_mutex_);
    const auto there = [&] { return !news_.empty() || ended_; };
    if (const std::optional<double> left_s = deadline.seconds_left(); !has_thread() || left_s)
      (void)news_came_.wait_for(lock, std::chrono::duration<double>(left_s.value_or(0)), there);
    else
      news_came_.wait(lock, there);
    news = std::exchange(news_, {});
    if (news.empty() && ended_) return std::nullopt;
  }
  for (const TaskOutcome& outcome : news.outcomes)
    if (const Ending ending = ending_of(outcome); !outcome.task.of_map)
      tally_.count(ending == Ending::done ? 1 : 0, ending == Ending::failed ? 1 : 0);
  const std::scoped_lock lock(mutex_);
  MINIRAY_CHECK(outstanding_ >= news.outcomes.size(), outstanding_, news.outcomes.size());
  outstanding_ -= news.outcomes.size();
  return news;
}

void TaskDriver::nudge() {
  (void)post_and_tell([](TaskEngine&) {});
}

bool TaskDriver::post_and_tell(Command command) {
  return post([this, command = std::move(command)](TaskEngine& engine) {
    command(engine);
    fresh_.nudged = true;
  });
}

// The end.

void TaskDriver::refuse_tasks() {
  const std::scoped_lock lock(mutex_);
  refusing_ = true;
}

bool TaskDriver::refuses_tasks() const {
  const std::scoped_lock lock(mutex_);
  return refusing_;
}

bool TaskDriver::is_finished() {
  const std::scoped_lock lock(mutex_);
  return refusing_ && outstanding_ == 0;
}

void TaskDriver::stop() {
  if (!engine_) return;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    ring();
  }
  if (has_thread())
    thread_.join();
  else
    end();
  std::vector<Command> unheard;  // a worker that came too late ends when its command is destroyed
  std::unique_ptr<Staff> staff;  // and so do workers that are being made
  {
    const std::scoped_lock lock(mutex_);
    unheard.swap(commands_);
    staff.swap(staff_);
    engine_.reset();
    waker_.reset();
    bell_.reset();
  }
  close_together(std::exchange(left_workers_, {}), urgency_);
}

void TaskDriver::hurry(Closing how) {
  if (how > urgency_->load()) urgency_->store(how);
}

}  // namespace miniray
