#include "tasks/driver.hpp"

#include <algorithm>
#include <future>

#include "base/check.hpp"
#include "miniray/error.hpp"

namespace miniray {

void close_together(const std::vector<std::shared_ptr<Worker>>& workers, const Urgency& urgency) {
  std::vector<Worker*> all;
  for (const std::shared_ptr<Worker>& worker : workers) all.push_back(worker.get());
  CloseOptions options;
  options.urgency = urgency.get();
  try {
    Closer(all, options).run();
  } catch (const Error&) {  // the pool is in a hurry: they have ended
  }
}

TaskDriver::TaskDriver() {
  ChannelOptions quiet;
  quiet.spin_us = 0;
  auto [here, there] = Channel::pair(quiet);
  waker_ = std::make_unique<Channel>(std::move(here));
  bell_ = std::make_unique<Channel>(std::move(there));
}

void TaskDriver::add_node(std::string name, NodeResources resources, std::vector<std::string> gpu_names) {
  MINIRAY_CHECK(!engine_);
  nodes_.push_back({std::move(name), std::move(resources), std::move(gpu_names)});
}

void TaskDriver::start(std::optional<Task> initializer) {
  MINIRAY_CHECK(!engine_);
  TaskEngine::Options options;
  options.initializer = std::move(initializer);
  options.on_event = [this](PoolEvent event) { fresh_.events.push_back(std::move(event)); };
  options.on_vacancy = [this](std::size_t node, std::shared_ptr<Worker> gone) {
    fresh_.vacancies.push_back({node, std::move(gone)});
  };
  options.on_unknown = [this](const TaskFunction& function) { fresh_.unknown_functions.push_back(function.number); };
  engine_ = std::make_unique<TaskEngine>(std::move(options));
  for (const Node& node : nodes_) engine_->add_node(node.name, node.resources, node.gpu_names);
  thread_ = std::thread([this] { run(); });
}

void TaskDriver::add_worker(std::size_t node, std::shared_ptr<Worker> worker, bool shares_clock) {
  MINIRAY_CHECK(worker && node < nodes_.size(), node);
  post([node, worker = std::move(worker), shares_clock](TaskEngine& engine) {
    engine.add_worker(node, worker, shares_clock);
  });
}

void TaskDriver::set_link(std::size_t node, Channel link) {
  auto taken = std::make_shared<Channel>(std::move(link));
  post([node, taken](TaskEngine& engine) { engine.set_link(node, std::move(*taken)); });
}

std::shared_ptr<const TaskTerms> TaskDriver::terms(const Demand& demand, std::optional<double> timeout_s,
                                                   int retries) const {
  check(demand);
  TaskEngine probe({});
  for (const Node& node : nodes_) probe.add_node(node.name, node.resources, node.gpu_names);
  if (const std::string obstacle = probe.obstacle_to(demand); !obstacle.empty()) throw UsageError(obstacle);
  return std::make_shared<const TaskTerms>(TaskTerms{demand, timeout_s, retries});
}

// Waits for the engine to have answered.
template <class Answer, class Question>
Answer TaskDriver::ask(Question question) {
  Answer answer{};
  std::promise<void> told;
  const bool running = post([&](TaskEngine& engine) {
    answer = question(engine);
    told.set_value();
  });
  if (running) told.get_future().wait();
  return answer;
}

// Tasks.

bool TaskDriver::submit(Task task, bool late) {
  MINIRAY_CHECK(task.number > 0 && task.terms, task.number);
  const std::scoped_lock lock(mutex_);  // held briefly, by whoever
  if (ending_ || (refusing_ && !late)) return false;
  ++outstanding_;
  incoming_.push_back(std::move(task));
  ring();
  return true;
}

void TaskDriver::submit_again(Task task) {
  const std::scoped_lock lock(mutex_);
  ++outstanding_;
  again_.push_back(std::move(task));
  ring();
}

void TaskDriver::cancel(std::int64_t number, bool even_if_it_runs, Closing how) {
  (void)ask<bool>([=](TaskEngine& engine) {
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

void TaskDriver::break_down(const std::string& why) {
  post([why](TaskEngine& engine) { engine.break_down(why); });
}

void TaskDriver::give_up_node(std::size_t node, const std::string& why) {
  post([node, why](TaskEngine& engine) { engine.give_up_node(node, why); });
}

// To the engine's thread, and from it.

// Has the engine look, if it sleeps. With the lock.
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
  return ask<bool>([&](const TaskEngine& engine) { return engine.is_running(number); });
}

TaskEngine::Census TaskDriver::census() {
  return ask<TaskEngine::Census>([](const TaskEngine& engine) { return engine.census(); });
}

std::vector<TaskEngine::WorkerStatus> TaskDriver::workers() {
  return ask<std::vector<TaskEngine::WorkerStatus>>([](const TaskEngine& engine) { return engine.workers(); });
}

void TaskDriver::run() {
  while (true) {
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
    for (Task& task : incoming) engine_->submit(std::move(task));
    for (Task& task : again) engine_->submit_again(std::move(task));
    for (const Command& command : commands) command(*engine_);
    if (stopping) break;
    publish();  // what the commands had to tell must not wait for a turn
    engine_->turn(-1, waker_.get());
    publish();
  }
  dismissed_ = engine_->dismiss();
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
  {
    const std::scoped_lock lock(news_mutex_);
    std::ranges::move(outcomes, std::back_inserter(news_.outcomes));
    std::ranges::move(fresh_.events, std::back_inserter(news_.events));
    std::ranges::move(fresh_.vacancies, std::back_inserter(news_.vacancies));
    std::ranges::move(fresh_.unknown_functions, std::back_inserter(news_.unknown_functions));
    news_.nudged = news_.nudged || fresh_.nudged;
  }
  fresh_ = {};
  news_came_.notify_one();
}

std::optional<TaskDriver::News> TaskDriver::wait_news() {
  News news;
  {
    std::unique_lock lock(news_mutex_);
    news_came_.wait(lock, [&] { return !news_.empty() || ended_; });
    news = std::exchange(news_, {});
  }
  if (news.empty()) return std::nullopt;
  const std::scoped_lock lock(mutex_);
  MINIRAY_CHECK(outstanding_ >= news.outcomes.size(), outstanding_, news.outcomes.size());
  outstanding_ -= news.outcomes.size();
  return news;
}

void TaskDriver::nudge() {
  post([this](TaskEngine&) { fresh_.nudged = true; });
}

// The end.

void TaskDriver::refuse_tasks() {
  const std::scoped_lock lock(mutex_);
  refusing_ = true;
}

bool TaskDriver::is_finished() {
  const std::scoped_lock lock(mutex_);
  return refusing_ && outstanding_ == 0;
}

void TaskDriver::stop() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    ring();
  }
  thread_.join();
  std::vector<Command> unheard;  // a worker that came too late ends with its command
  {
    const std::scoped_lock lock(mutex_);
    unheard.swap(commands_);
    engine_.reset();
    waker_.reset();
    bell_.reset();
  }
  close_together(std::exchange(dismissed_, {}), urgency_);
}

void TaskDriver::hurry(Closing how) {
  if (how > urgency_->load()) urgency_->store(how);
}

}  // namespace miniray
