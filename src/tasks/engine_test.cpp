// The engine with real workers. Where a test needs tasks to wait behind another in a worker, whatever the machine's
// speed, the worker says of each task that it took a microsecond.
#include "tasks/engine.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <map>
#include <set>

#include "base/clock.hpp"
#include "calls/call_format.hpp"
#include "miniray/calls.hpp"
#include "tests/task_functions.hpp"

namespace miniray {
namespace {

using Kind = TaskOutcome::Kind;

void serve_as_if_quick(Handle& handle) {
  handle.set_call_server([](Handle& called, const Message& call) {
    const CallOrder order = parse_call(decode(call));
    if (order.kind == CallOrder::Kind::environment) {
      for (const auto& [name, value] : order.name.map()) setenv(name.string().c_str(), value.string().c_str(), 1);
      return;
    }
    const bool late = order.lease_ns != 0 && now_ns() > order.lease_ns;
    Value reply = dropped_body(order.number);
    if (!late && !called.channel().was_dropped(order.number)) {
      const std::string& name = order.name.string();
      reply = value_body(order.number, registry().function(name)(name, order.arguments.list()), 1000);
    }
    called.channel().send(reply_message(reply, Codec::msgpack));
  });
  (void)handle.recv();
}

// Answers so many calls, and returns.
WorkFunction serve_only(int count) {
  return [count](Handle& handle) {
    for (int i = 0; i < count; ++i) {
      const Message call = handle.channel().receive({.lane = Lane::calls});
      handle.channel().send(reply_message(value_body(call_number(decode(call)), i, 1000), Codec::msgpack));
    }
  };
}

/// An engine, what it told, and what became of its tasks.
class Scene {
 public:
  explicit Scene(std::optional<Task> initializer = {}) : engine(options(std::move(initializer))) {}
  ~Scene() {
    for (const std::shared_ptr<Worker>& worker : engine.dismiss()) worker->kill(SIGKILL);
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
    Value body = call_body(number, function, std::move(arguments));
    body.list().emplace_back(nullptr);
    body.list().emplace_back(some_lease);
    made.call = call_message(body, Codec::msgpack);
    return made;
  }

  /// Turns until something holds, which it does sooner or later.
  template <class Condition>
  void turn_until(Condition condition) {
    while (!condition()) {
      engine.turn(0.02);
      take_outcomes();
    }
  }
  /// Does what can be done at once, and all that follows from it without anybody's doing.
  void turn() {
    for (int i = 0; i < 3; ++i) engine.turn(0);
    take_outcomes();
  }
  const TaskOutcome& outcome(std::int64_t number) {
    turn_until([&] { return outcomes.contains(number); });
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
    turn_until([&] { return folder.has(name + ".begun"); });
    return number;
  }
  [[nodiscard]] std::size_t count(const std::string& kind) const {
    return static_cast<std::size_t>(std::ranges::count(events, kind, &PoolEvent::kind));
  }

  std::vector<PoolEvent> events;
  std::map<std::int64_t, TaskOutcome> outcomes;
  std::vector<std::int64_t> order;  // of the outcomes
  std::function<void(std::size_t node)> on_vacancy = [this](std::size_t node) { add_worker(serve_as_if_quick, node); };
  TaskEngine engine;

 private:
  TaskEngine::Options options(std::optional<Task> initializer) {
    TaskEngine::Options made;
    made.initializer = std::move(initializer);
    made.on_event = [this](PoolEvent event) { events.push_back(std::move(event)); };
    made.on_vacancy = [this](std::size_t node, const std::shared_ptr<Worker>&) {
      if (on_vacancy) on_vacancy(node);
    };
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

TEST_CASE("tasks go to workers, and their replies come back") {
  Scene scene;
  scene.add_node(2);
  scene.add_worker(serve_calls);
  scene.add_worker(serve_calls);
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 200; ++i) numbers.push_back(scene.submit("test_square", {i}));
  for (int i = 0; i < 200; ++i) CHECK(scene.value(numbers[static_cast<std::size_t>(i)]) == Value(double(i) * i));
  const std::int64_t raises = scene.submit("test_raise", {"a bug"});
  CHECK(parse_reply(scene.outcome(raises).reply).failure.message == "a bug");
  const std::int64_t unknown = scene.submit("no_such_function");
  CHECK(parse_reply(scene.outcome(unknown).reply).head.kind == ReplyKind::error);
  CHECK(scene.engine.census().idle == 2);
  CHECK(scene.count("worker_started") == 2);
}

TEST_CASE("tasks that are known to be quick wait behind another; others do not") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  const std::int64_t first = scene.begin_waiting(folder, "first");
  const std::int64_t second = scene.submit("test_square", {3});
  scene.turn();
  CHECK(scene.tasks_of(*worker) == 1);  // nobody knows yet how long they take
  folder.touch("first.go");
  (void)scene.outcome(first);
  CHECK(scene.value(second) == Value(9.0));

  const std::int64_t third = scene.begin_waiting(folder, "third");
  std::vector<std::int64_t> behind;
  for (int i = 0; i < 100; ++i) behind.push_back(scene.submit("test_square", {i}));
  scene.turn();
  CHECK(scene.tasks_of(*worker) == 1 + limits::tasks_ahead_max);
  CHECK(scene.engine.is_running(third));
  CHECK_FALSE(scene.engine.is_running(behind[0]));
  CHECK(scene.engine.census().waiting == 100);
  const std::int64_t other = scene.submit({.demand = {.cpus = 0.5}}, "test_square", {1});  // in another line
  folder.touch("third.go");
  for (const std::int64_t number : behind) (void)scene.outcome(number);
  CHECK(scene.value(other) == Value(1.0));
}

TEST_CASE("tasks behind one that takes long are taken back, and begin once") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  const auto slow = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t long_one = scene.begin_waiting(folder, "long");
  std::vector<std::int64_t> behind;
  for (int i = 0; i < 5; ++i) behind.push_back(scene.submit("test_append", {folder.file("log"), std::to_string(i)}));
  scene.turn();
  REQUIRE(scene.tasks_of(*slow) == 6);
  const auto other = scene.add_worker();
  for (const std::int64_t number : behind) CHECK(scene.outcome(number).worker == other->name());
  CHECK(scene.tasks_of(*slow) == 1);
  folder.touch("long.go");
  CHECK(scene.outcome(long_one).worker == slow->name());
  const std::int64_t after = scene.submit("test_pid");  // what the slow one has dropped is not taken for anything else
  (void)scene.outcome(after);
  scene.turn_until([&] { return scene.engine.census().idle == 2; });
  CHECK(folder.lines("log") == std::vector<std::string>{"0", "1", "2", "3", "4"});
}

TEST_CASE("a task that began while nobody looked is not taken back, however late it is") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  const auto dying = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const auto busy = scene.add_worker();
  // Of another demand, so that nothing waits behind it.
  const std::int64_t dies = scene.submit({.demand = {.cpus = 0.5}, .retries = 1}, "test_die_after",
                                         {folder.file("die"), folder.file("died")});
  scene.turn();
  REQUIRE(scene.tasks_of(*dying) == 1);
  const std::int64_t first = scene.begin_waiting(folder, "first");
  const std::int64_t second = scene.submit("test_wait", {folder.file("second.begun"), folder.file("second.go")});
  scene.turn();
  REQUIRE(scene.tasks_of(*busy) == 2);
  // While a replacement is made, which takes longer than a lease, the second begins.
  scene.on_vacancy = [&](std::size_t node) {
    folder.touch("first.go");
    folder.wait_for("second.begun");
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * limits::task_lease_ms));
    scene.add_worker(serve_as_if_quick, node);
  };
  folder.touch("die");
  (void)scene.outcome(dies);
  (void)scene.outcome(first);
  CHECK(scene.engine.is_running(second));
  folder.touch("second.go");
  CHECK(scene.outcome(second).worker == busy->name());
  CHECK(folder.lines("second.begun").size() == 1);
}

TEST_CASE("a task that finished in time while nobody looked has not run out of it") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  const auto dying = scene.add_worker();
  const auto busy = scene.add_worker();
  const std::int64_t dies = scene.submit({.retries = 1}, "test_die_after", {folder.file("die"), folder.file("died")});
  scene.turn();
  REQUIRE(scene.tasks_of(*dying) == 1);
  const std::int64_t timed = scene.begin_waiting(folder, "timed", {.timeout_s = 100.0});
  const std::int64_t quick = scene.submit({.timeout_s = 0.2}, "test_square", {2});
  scene.on_vacancy = [&](std::size_t node) {
    folder.touch("timed.go");
    scene.add_worker(serve_as_if_quick, node);
  };
  folder.touch("die");
  (void)scene.outcome(dies);
  CHECK(scene.outcome(timed).kind == Kind::reply);
  CHECK(scene.outcome(quick).kind == Kind::reply);
}

// Deaths.

TEST_CASE("the task that ran when its worker died is charged; those behind it are not") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t dies = scene.submit("test_die_after", {folder.file("die"), folder.file("no such folder/died")});
  const std::int64_t behind = scene.submit("test_square", {3}), also = scene.submit("test_die");
  scene.turn();
  REQUIRE(scene.tasks_of(*worker) == 3);
  folder.touch("die");
  const TaskOutcome& died = scene.outcome(dies);
  CHECK(died.kind == Kind::died);
  CHECK(died.task.tries == 1);
  CHECK(died.certificate->signal == SIGKILL);
  CHECK(died.worker == worker->name());
  CHECK(scene.value(behind) == Value(9.0));
  CHECK(scene.outcome(behind).task.tries == 0);
  CHECK(scene.outcome(also).task.tries == 1);
  CHECK(scene.count("task_retried") == 0);
  scene.turn_until([&] { return scene.count("worker_started") == 3; });
  CHECK(scene.count("worker_died") == 2);
}

TEST_CASE("a task is tried as often as its terms allow") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  scene.add_worker();
  const std::int64_t twice = scene.submit({.retries = 2}, "test_die_first", {folder.file("twice"), 2});
  const std::int64_t thrice = scene.submit({.retries = 2}, "test_die_first", {folder.file("thrice"), 3});
  CHECK(scene.value(twice) == Value(3));
  CHECK(scene.outcome(twice).task.tries == 2);
  CHECK(scene.outcome(thrice).kind == Kind::died);
  CHECK(scene.outcome(thrice).task.tries == 3);
  CHECK(folder.lines("thrice").size() == 3);
  CHECK(scene.count("task_retried") == 4);
}

TEST_CASE("replies that came before a death count") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t before = scene.submit("test_square", {3});
  const std::int64_t dies = scene.submit("test_die_after", {folder.file("die"), folder.file("no such folder/died")});
  folder.touch("die");
  scene.engine.turn(0);
  (void)worker->wait();
  CHECK(scene.value(before) == Value(9.0));
  CHECK(scene.outcome(dies).kind == Kind::died);
}

TEST_CASE("a work function that returns charges nobody but the one that it had") {
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker(serve_only(1));
  worker->kill(SIGSTOP);
  const std::int64_t first = scene.submit("test_square", {1});
  scene.turn();
  worker->kill(SIGCONT);
  CHECK(scene.value(first) == Value(0));
  const std::int64_t next = scene.submit({.retries = 1}, "test_square", {2});
  CHECK(scene.value(next) == Value(4.0));
  CHECK(scene.events[1].text.find("has returned") != std::string::npos);

  Scene other;
  other.add_node(1);
  const auto two = other.add_worker(serve_only(2));
  other.learn_that_tasks_are_quick();
  two->kill(SIGSTOP);
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 4; ++i) numbers.push_back(other.submit("test_square", {i}));
  other.turn();
  REQUIRE(other.tasks_of(*two) == 4);
  two->kill(SIGCONT);
  CHECK(other.value(numbers[0]) == Value(1));
  CHECK(other.outcome(numbers[1]).kind == Kind::died);
  CHECK(other.value(numbers[2]) == Value(4.0));
  CHECK(other.value(numbers[3]) == Value(9.0));
}

TEST_CASE("a task that no message can hold fails, and nobody else does") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(serve_calls);
  Task large = Scene::task(1000, {}, "test_square", {1});
  large.call.buffers.resize(limits::buffers_max + 1);
  scene.engine.submit(std::move(large));
  const CallReply reply = parse_reply(scene.outcome(1000).reply);
  CHECK(reply.head.number == 1000);
  CHECK(reply.failure.type == "miniray::MessageTooLarge");
  CHECK(scene.value(scene.submit("test_square", {3})) == Value(9.0));
  CHECK(scene.count("worker_started") == 1);
}

// Taking back.

TEST_CASE("cancelling: what waits, what waits behind another, and what runs") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t running = scene.begin_waiting(folder, "running");
  const std::int64_t behind = scene.submit("test_append", {folder.file("log"), "behind"});
  const std::int64_t kept = scene.submit("test_append", {folder.file("log"), "kept"});
  scene.turn();
  REQUIRE(scene.tasks_of(*worker) == 3);
  const std::int64_t waiting = scene.submit({.demand = {.cpus = 0.5}}, "test_append", {folder.file("log"), "waiting"});
  scene.turn();
  for (const std::int64_t number : {waiting, behind, running}) {
    scene.engine.cancel(number);
    scene.engine.cancel(number);
    CHECK(scene.outcome(number).kind == Kind::cancelled);
  }
  CHECK(scene.outcome(kept).kind == Kind::reply);
  CHECK(scene.outcome(kept).task.tries == 0);
  CHECK(scene.outcome(kept).worker != worker->name());
  CHECK(folder.lines("log") == std::vector<std::string>{"kept"});
  scene.engine.cancel(kept);
  scene.engine.cancel(12345);
  scene.turn();
  CHECK(scene.outcomes.size() == 5);
}

TEST_CASE("a task behind another is dropped where it is") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t running = scene.begin_waiting(folder, "running");
  const std::int64_t behind = scene.submit("test_append", {folder.file("log"), "behind"});
  scene.turn();
  REQUIRE(scene.tasks_of(*worker) == 2);
  scene.engine.cancel(behind);
  folder.touch("running.go");
  CHECK(scene.outcome(running).worker == worker->name());
  CHECK(scene.outcome(scene.submit("test_square", {1})).worker == worker->name());
  CHECK_FALSE(folder.has("log"));
}

TEST_CASE("cancel_waiting leaves what has gone to a worker") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  scene.add_worker();
  const std::int64_t running = scene.begin_waiting(folder, "running");
  const std::int64_t waiting = scene.submit("test_square", {1});
  scene.engine.cancel_waiting();
  CHECK(scene.outcome(waiting).kind == Kind::cancelled);
  folder.touch("running.go");
  CHECK(scene.outcome(running).kind == Kind::reply);
}

TEST_CASE("a task that runs for too long ends with its worker, and says what it was doing") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t stuck =
      scene.submit({.timeout_s = 0.05}, "test_wait", {folder.file("begun"), folder.file("never")});
  const std::int64_t behind = scene.submit("test_square", {3});
  const TaskOutcome& outcome = scene.outcome(stuck);
  CHECK(outcome.kind == Kind::timed_out);
  CHECK(outcome.worker == worker->name());
  CHECK_FALSE(outcome.text.empty());
  CHECK(scene.value(behind) == Value(9.0));
  CHECK(scene.count("task_timeout") == 1);
  CHECK(scene.outcome(scene.submit({.timeout_s = 1000.0}, "test_square", {3})).kind == Kind::reply);
}

// Who gets what.

TEST_CASE("a task sees its GPUs and no others") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(3, {"red", "green"});
  for (int i = 0; i < 3; ++i) scene.add_worker();
  const auto seen = [&](double gpus) {
    return scene.value(scene.submit({.demand = {.gpus = gpus}}, "test_environment", {"CUDA_VISIBLE_DEVICES"}));
  };
  CHECK(seen(1) == Value("red"));
  const std::int64_t holds = scene.begin_waiting(folder, "holds", {.demand = {.gpus = 1}});  // red
  CHECK(seen(1) == Value("green"));
  CHECK(seen(0.5) == Value("green"));
  CHECK(scene.count("worker_ended") == 0);
  folder.touch("holds.go");
  (void)scene.outcome(holds);
  for (int i = 0; i < 10; ++i) CHECK(seen(1) == Value("red"));
  CHECK(scene.count("worker_ended") == 0);
  CHECK(seen(2) == Value("red,green"));
  // One worker had seen none: it was shown both. Now all have seen some.
  CHECK(scene.count("worker_ended") == 0);
  const std::int64_t red = scene.begin_waiting(folder, "red", {.demand = {.gpus = 1}});
  const std::int64_t green = scene.begin_waiting(folder, "green", {.demand = {.gpus = 1}});
  CHECK(scene.count("worker_ended") == 0);
  folder.touch("red.go");
  folder.touch("green.go");
  (void)scene.outcome(red);
  (void)scene.outcome(green);
}

TEST_CASE("a worker that has seen other GPUs is replaced, one at a time") {
  Scene scene;
  scene.add_node(3, {"red", "green"});
  for (int i = 0; i < 3; ++i) scene.add_worker();
  const TestFolder folder;
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 3; ++i)
    numbers.push_back(scene.begin_waiting(folder, std::to_string(i), {.demand = {.gpus = 0.3}}));
  for (int i = 0; i < 3; ++i) folder.touch(std::to_string(i) + ".go");
  for (const std::int64_t number : numbers) (void)scene.outcome(number);
  const std::int64_t both = scene.submit({.demand = {.gpus = 2}}, "test_environment", {"CUDA_VISIBLE_DEVICES"});
  CHECK(scene.value(both) == Value("red,green"));
  CHECK(scene.count("worker_ended") == 1);
  CHECK(scene.count("worker_started") == 4);
}

TEST_CASE("a wide task is not starved by narrow ones that came later") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  scene.add_worker();
  scene.add_worker();
  const std::int64_t running = scene.begin_waiting(folder, "running");
  const std::int64_t wide = scene.submit({.demand = {.cpus = 2}}, "test_append", {folder.file("log"), "wide"});
  std::vector<std::int64_t> narrow;
  for (int i = 0; i < 3; ++i) narrow.push_back(scene.submit("test_append", {folder.file("log"), "narrow"}));
  scene.turn();
  CHECK(scene.engine.census().idle == 1);  // it is kept for the wide one
  CHECK(scene.engine.census().waiting == 4);
  folder.touch("running.go");
  (void)scene.outcome(running);
  (void)scene.outcome(wide);
  for (const std::int64_t number : narrow) (void)scene.outcome(number);
  CHECK(folder.lines("log") == std::vector<std::string>{"wide", "narrow", "narrow", "narrow"});
}

TEST_CASE("spread goes where most is free, pack where least is, and a node may be named") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2, {}, "one");
  scene.add_node(2, {}, "two");
  std::set<std::string> of_one;
  for (int i = 0; i < 2; ++i) of_one.insert(scene.add_worker(serve_as_if_quick, 0)->name());
  for (int i = 0; i < 2; ++i) scene.add_worker(serve_as_if_quick, 1);
  const std::int64_t first = scene.begin_waiting(folder, "first", {.demand = {.node = "one"}});
  const std::int64_t spread = scene.submit("test_square", {1});
  CHECK_FALSE(of_one.contains(scene.outcome(spread).worker));
  const std::int64_t pack = scene.submit({.demand = {.strategy = Strategy::pack}}, "test_square", {1});
  CHECK(of_one.contains(scene.outcome(pack).worker));
  folder.touch("first.go");
  CHECK(of_one.contains(scene.outcome(first).worker));
  CHECK(scene.engine.obstacle_to({.cpus = 2, .node = "two"}).empty());
  CHECK(scene.engine.obstacle_to({.cpus = 3}) ==
        "no node can ever run a task with num_cpus=3:\n  one lacks num_cpus 3 (it has 2)\n  two lacks num_cpus 3 (it "
        "has 2)");
  CHECK(scene.engine.obstacle_to({.node = "three"}) == "there is no node \"three\" in the pool; it has one, two");
}

// The beginning and the end.

TEST_CASE("a worker gets tasks when its initializer is through") {
  const TestFolder folder;
  Scene scene(Scene::task(-1, {}, "test_wait", {folder.file("begun"), folder.file("go")}));
  scene.add_node(1);
  scene.add_worker(serve_calls);
  const std::int64_t number = scene.submit("test_square", {3});
  scene.turn_until([&] { return folder.has("begun"); });
  scene.turn();
  CHECK(scene.engine.workers().at(0).state == "preparing");
  CHECK(scene.engine.census().waiting == 1);
  folder.touch("go");
  CHECK(scene.value(number) == Value(9.0));
}

TEST_CASE("an initializer that raises breaks the pool; a worker that dies over it is told of") {
  Scene scene(Scene::task(-1, {}, "test_raise", {"no data"}));
  scene.add_node(1);
  scene.add_worker(serve_calls);
  const TaskOutcome& outcome = scene.outcome(scene.submit("test_square", {3}));
  CHECK(outcome.kind == Kind::broken);
  CHECK(outcome.text.starts_with("the initializer raised std::out_of_range: no data in worker "));

  Scene dying(Scene::task(-1, {}, "test_die", {}));
  dying.add_node(1);
  dying.on_vacancy = nullptr;
  dying.add_worker(serve_calls);
  dying.turn_until([&] { return dying.count("worker_stillborn") == 1; });
}

TEST_CASE("broken down: what waits and what comes ends, what runs is finished, and nothing is put back") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  scene.add_worker();
  scene.on_vacancy = nullptr;
  scene.learn_that_tasks_are_quick();
  const std::int64_t runs = scene.begin_waiting(folder, "runs");
  scene.add_worker();
  const std::int64_t dies =
      scene.submit({.retries = 5}, "test_die_after", {folder.file("die"), folder.file("no such folder/died")});
  const std::int64_t behind = scene.submit("test_square", {3});
  scene.turn();
  REQUIRE(scene.engine.census().running == 2);
  const std::int64_t waits = scene.submit({.demand = {.cpus = 2}}, "test_square", {3});
  scene.engine.break_down("the lights went out");
  CHECK(scene.outcome(waits).kind == Kind::broken);
  CHECK(scene.outcome(waits).text == "the lights went out");
  CHECK(scene.outcome(scene.submit("test_square", {3})).kind == Kind::broken);
  folder.touch("die");
  CHECK(scene.outcome(dies).kind == Kind::broken);
  // Behind either of the two, it was begun or is given up.
  folder.touch("runs.go");
  CHECK(scene.outcome(runs).kind == Kind::reply);
  (void)scene.outcome(behind);
  CHECK(scene.count("pool_broken") == 1);
}

TEST_CASE("what is taken back after the pool broke down has an outcome") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t runs = scene.begin_waiting(folder, "runs");
  const std::int64_t behind = scene.submit("test_square", {3});
  scene.turn();
  REQUIRE(scene.tasks_of(*worker) == 2);
  scene.engine.break_down("the lights went out");
  CHECK(scene.outcome(behind).kind == Kind::broken);  // once its lease is over
  folder.touch("runs.go");
  CHECK(scene.outcome(runs).kind == Kind::reply);
}

}  // namespace miniray
