// The engine with real workers, for its tests. Where one needs tasks to wait behind another in a worker, whatever the
// machine's speed, the worker says that tasks are quick.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>

#include <map>
#include <set>

#include "base/clock.hpp"
#include "calls/call_format.hpp"
#include "miniray/calls.hpp"
#include "tasks/engine.hpp"
#include "tests/task_functions.hpp"

namespace miniray {
namespace {

using Kind = TaskOutcome::Kind;

/// A reply that says the call took a microsecond.
inline void send_quick(Channel& channel, const Message& call, Message reply) {
  reply.head.number = call.head.number;
  reply.head.time_ns = 1000;
  channel.send(reply);
}

inline void serve_as_if_quick(Handle& handle) {
  handle.set_call_server([](Handle& called, const Message& call) {
    const CallOrder order = parse_call(call);
    if (order.verb == CallVerb::plain) return;
    if (order.verb == CallVerb::environment) {
      for (const auto& [name, value] : order.name.map()) setenv(name.string().c_str(), value.string().c_str(), 1);
      return;
    }
    const bool late = call.head.time_ns != 0 && now_ns() > call.head.time_ns;
    Message reply = reply_message(ReplyVerb::dropped, Value());
    Value result;
    if (!late && !called.channel().was_dropped(call.head.number)) {
      const std::string& name = order.name.string();
      result = registry().function(name)(name, order.arguments.list());
      reply = reply_message(ReplyVerb::value, result);
    }
    send_quick(called.channel(), call, std::move(reply));
  });
  (void)handle.recv();
}

// Answers so many calls, and returns.
inline WorkFunction serve_only(int count) {
  return [count](Handle& handle) {
    for (int i = 0; i < count; ++i) {
      const Message call = handle.channel().receive({.lane = Lane::calls});
      send_quick(handle.channel(), call, reply_message(ReplyVerb::value, Value(i)));
    }
  };
}

/// An engine that looks whether it contradicts itself, after each step.
class CheckedEngine : public TaskEngine {
 public:
  using TaskEngine::TaskEngine;
  ~CheckedEngine() { check_invariants(); }
  CheckedEngine(const CheckedEngine&) = delete;
  CheckedEngine& operator=(const CheckedEngine&) = delete;

  std::size_t add_node(std::string name, NodeResources resources, std::vector<std::string> gpu_names = {}) {
    const std::size_t node = TaskEngine::add_node(std::move(name), std::move(resources), std::move(gpu_names));
    check_invariants();
    return node;
  }
  void add_worker(std::size_t node, std::shared_ptr<Worker> worker, bool shares_clock) {
    step([&] { TaskEngine::add_worker(node, std::move(worker), shares_clock); });
  }
  void set_link(std::size_t node, Channel link) {
    step([&] { TaskEngine::set_link(node, std::move(link)); });
  }
  void break_down(const std::string& why) {
    step([&] { TaskEngine::break_down(why); });
  }
  void break_node(std::size_t node, const std::string& why) {
    step([&] { TaskEngine::break_node(node, why); });
  }
  void submit(Task task) {
    step([&] { TaskEngine::submit(std::move(task)); });
  }
  void submit_again(Task task) {
    step([&] { TaskEngine::submit_again(std::move(task)); });
  }
  void cancel(std::int64_t number, bool even_if_it_runs = true, Closing how = Closing::kill) {
    step([&] { TaskEngine::cancel(number, even_if_it_runs, how); });
  }
  void cancel_waiting() {
    step([&] { TaskEngine::cancel_waiting(); });
  }
  void cancel_all() {
    step([&] { TaskEngine::cancel_all(); });
  }
  void defined(const TaskFunction& function) {
    step([&] { TaskEngine::defined(function); });
  }
  void poll(double timeout_s, Channel* waker = nullptr) {
    step([&] { TaskEngine::poll(timeout_s, waker); });
  }

 private:
  template <class Step>
  void step(Step taken) {
    taken();
    check_invariants();
  }
};

/// An engine, what it told, and what became of its tasks.
class Scene {
 public:
  explicit Scene(std::optional<Task> initializer = {}, bool pickle = true)
      : engine(options(std::move(initializer), pickle)) {}
  ~Scene() {
    for (const std::shared_ptr<Worker>& worker : engine.end_workers()) worker->kill(SIGKILL);
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  void add_node(double cpus, const std::vector<std::string>& gpus = {}, const std::string& name = "here") {
    engine.add_node(name, NodeResources(cpus, gpus.size(), {}), gpus);
  }
  std::shared_ptr<Worker> add_worker(const WorkFunction& work = serve_as_if_quick, std::size_t node = 0) {
    auto worker = std::make_shared<Worker>(work);
    engine.add_worker(node, worker, true);
    return worker;
  }

  std::int64_t submit(const TaskTerms& terms, const std::string& function, List arguments = {}) {
    engine.submit(task(++last_number_, terms, function, std::move(arguments)));
    return last_number_;
  }
  std::int64_t submit(const std::string& function, List arguments = {}) {
    return submit(TaskTerms(), function, std::move(arguments));
  }
  static Task task(std::int64_t number, const TaskTerms& terms, const std::string& function, List arguments) {
    Task made;
    made.number = number;
    made.terms = std::make_shared<TaskTerms>(terms);
    made.call = call_message(CallVerb::call, call_body(function, std::move(arguments)), number);
    return made;
  }

  /// Turns until something holds. `what` says what, for the error if it never does.
  template <class Condition>
  void turn_until(const std::string& what, Condition condition) {
    for (const Patience patience(what); !condition(); patience.check()) {
      engine.poll(0.02);
      take_outcomes();
    }
  }
  /// Does what can be done at once, and all that follows from it without anybody's doing.
  void poll() {
    for (int i = 0; i < 3; ++i) engine.poll(0);
    take_outcomes();
  }
  const TaskOutcome& outcome(std::int64_t number) {
    turn_until("an outcome of task " + std::to_string(number), [&] { return outcomes.contains(number); });
    return outcomes.at(number);
  }
  Value value(std::int64_t number) { return parse_reply(outcome(number).reply).value; }
  [[nodiscard]] std::size_t tasks_of(const Worker& worker) const {
    for (const auto& status : engine.workers())
      if (status.pid == worker.pid()) return status.tasks;
    return 0;
  }
  /// From now on its kind of task is known to be quick.
  void learn_that_tasks_are_quick() { (void)outcome(submit("test_square", {2})); }
  /// A task that has begun in this worker, the only one, and goes on until `go` is there.
  std::int64_t begin_waiting(const TestFolder& folder, const std::string& name, const TaskTerms& terms = {}) {
    const std::int64_t number = submit(terms, "test_wait", {folder.file(name + ".begun"), folder.file(name + ".go")});
    turn_until("the beginning of " + name, [&] { return folder.has(name + ".begun"); });
    return number;
  }
  [[nodiscard]] std::size_t count(const std::string& kind) const {
    return static_cast<std::size_t>(std::ranges::count(events, kind, &PoolEvent::kind));
  }

  std::vector<PoolEvent> events;
  std::map<std::int64_t, TaskOutcome> outcomes;
  std::vector<std::int64_t> order;      // of the outcomes
  std::vector<std::int64_t> asked_for;  // functions that a worker does not have
  std::function<void(std::size_t node)> on_vacancy = [this](std::size_t node) { add_worker(serve_as_if_quick, node); };
  CheckedEngine engine;

 private:
  TaskEngine::Options options(std::optional<Task> initializer, bool pickle) {
    TaskEngine::Options made;
    made.initializer = std::move(initializer);
    made.pickle = pickle;
    made.on_event = [this](PoolEvent event) { events.push_back(std::move(event)); };
    made.on_vacancy = [this](std::size_t node, const std::shared_ptr<Worker>&) {
      if (on_vacancy) on_vacancy(node);
    };
    made.on_unknown = [this](const TaskFunction& function) { asked_for.push_back(function.number); };
    return made;
  }
  void take_outcomes() {
    for (TaskOutcome& each : engine.take_outcomes()) {
      CHECK_FALSE(outcomes.contains(each.task.number));  // each has one
      order.push_back(each.task.number);
      outcomes.emplace(each.task.number, std::move(each));
    }
  }
  std::int64_t last_number_ = 0;
};

}  // namespace
}  // namespace miniray
