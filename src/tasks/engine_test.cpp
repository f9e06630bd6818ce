// The engine with real workers. Where a test needs tasks to wait behind another in a worker, whatever the machine's
// speed, the worker says of each task that it took a microsecond.
#include "tasks/engine_scene.hpp"

namespace miniray {

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
  CHECK(parse_reply(scene.outcome(unknown).reply).verb == ReplyVerb::error);
  CHECK(scene.engine.census().idle == 2);
  CHECK(scene.count("worker_started") == 2);
}

TEST_CASE("tasks that are known to be quick are queued at a busy worker; others are not") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  const std::int64_t first = scene.begin_waiting(folder, "first");
  const std::int64_t second = scene.submit("test_square", {3});
  scene.poll();
  CHECK(scene.tasks_of(*worker) == 1);  // nobody knows yet how long they take
  folder.touch("first.go");
  (void)scene.outcome(first);
  CHECK(scene.value(second) == Value(9.0));

  const std::int64_t third = scene.begin_waiting(folder, "third");
  std::vector<std::int64_t> behind;
  for (int i = 0; i < 100; ++i) behind.push_back(scene.submit("test_square", {i}));
  scene.poll();
  CHECK(scene.tasks_of(*worker) == 1 + limits::tasks_ahead_max);
  CHECK(scene.engine.is_running(third));
  CHECK_FALSE(scene.engine.is_running(behind[0]));
  CHECK(scene.engine.census().waiting == 100);
  const std::int64_t other = scene.submit({.demand = {.cpus = 0.5}}, "test_square", {1});  // in another line
  folder.touch("third.go");
  for (const std::int64_t number : behind) (void)scene.outcome(number);
  CHECK(scene.value(other) == Value(1.0));
}

TEST_CASE("tasks that are queued behind a long one are taken back, and each begins once") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  const auto slow = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t long_one = scene.begin_waiting(folder, "long");
  std::vector<std::int64_t> behind;
  for (int i = 0; i < 5; ++i) behind.push_back(scene.submit("test_append", {folder.file("log"), std::to_string(i)}));
  scene.poll();
  REQUIRE(scene.tasks_of(*slow) == 6);
  const auto other = scene.add_worker();
  for (const std::int64_t number : behind) CHECK(scene.outcome(number).worker == other->name());
  CHECK(scene.tasks_of(*slow) == 1);
  folder.touch("long.go");
  CHECK(scene.outcome(long_one).worker == slow->name());
  const std::int64_t after = scene.submit("test_pid");  // what the slow one has dropped is not taken for anything else
  (void)scene.outcome(after);
  scene.turn_until("two idle workers", [&] { return scene.engine.census().idle == 2; });
  CHECK(folder.lines("log") == std::vector<std::string>{"0", "1", "2", "3", "4"});
}

TEST_CASE("a task that began between two polls is not taken back, however late the second poll is") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  const auto dying = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const auto busy = scene.add_worker();
  // Of another demand, so that nothing waits behind it.
  const std::int64_t dies = scene.submit({.demand = {.cpus = 0.5}, .retries = 1}, "test_die_after",
                                         {folder.file("die"), folder.file("died")});
  scene.poll();
  REQUIRE(scene.tasks_of(*dying) == 1);
  const std::int64_t first = scene.begin_waiting(folder, "first");
  const std::int64_t second = scene.submit("test_wait", {folder.file("second.begun"), folder.file("second.go")});
  scene.poll();
  REQUIRE(scene.tasks_of(*busy) == 2);
  const Deadline lease = Deadline::in_ms(limits::task_lease_ms);  // the worker's may have begun earlier
  // While a replacement is made, which takes longer than the lease, the second begins.
  scene.on_vacancy = [&](std::size_t node) {
    folder.touch("first.go");
    folder.wait_for("second.begun");
    wait_until("the end of the lease", [&] { return lease.passed(); });
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

TEST_CASE("a task that finished in time between two polls has not timed out") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(2);
  const auto dying = scene.add_worker();
  const auto busy = scene.add_worker();
  const std::int64_t dies = scene.submit({.retries = 1}, "test_die_after", {folder.file("die"), folder.file("died")});
  scene.poll();
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

TEST_CASE("a worker's death counts as a try of the task that ran, and of no task queued behind it") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t dies = scene.submit("test_die_after", {folder.file("die"), folder.file("no such folder/died")});
  const std::int64_t behind = scene.submit("test_square", {3}), also = scene.submit("test_die");
  scene.poll();
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
  scene.turn_until("the third worker", [&] { return scene.count("worker_started") == 3; });
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

TEST_CASE("replies that a worker sent before its death count") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t before = scene.submit("test_square", {3});
  const std::int64_t dies = scene.submit("test_die_after", {folder.file("die"), folder.file("no such folder/died")});
  folder.touch("die");
  scene.engine.poll(0);
  (void)worker->wait();
  CHECK(scene.value(before) == Value(9.0));
  CHECK(scene.outcome(dies).kind == Kind::died);
}

TEST_CASE("a work function that returns counts as a try of its running task only") {
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker(serve_only(1));
  worker->kill(SIGSTOP);
  const std::int64_t first = scene.submit("test_square", {1});
  scene.poll();
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
  other.poll();
  REQUIRE(other.tasks_of(*two) == 4);
  two->kill(SIGCONT);
  CHECK(other.value(numbers[0]) == Value(1));
  CHECK(other.outcome(numbers[1]).kind == Kind::died);
  CHECK(other.value(numbers[2]) == Value(4.0));
  CHECK(other.value(numbers[3]) == Value(9.0));
}

TEST_CASE("a task that no message can hold fails, and no other task does") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(serve_calls);
  Task large = Scene::task(1000, {}, "test_square", {1});
  large.call.buffers.resize(limits::buffers_max + 1);
  scene.engine.submit(std::move(large));
  const CallReply reply = parse_reply(scene.outcome(1000).reply);
  CHECK(scene.outcome(1000).reply.head.number == 1000);
  CHECK(reply.failure.type == "miniray::MessageTooLarge");
  CHECK(scene.value(scene.submit("test_square", {3})) == Value(9.0));
  CHECK(scene.count("worker_started") == 1);
}

// Taking back.

TEST_CASE("a task can be cancelled while it waits, while it is queued at a worker, and while it runs") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t running = scene.begin_waiting(folder, "running");
  const std::int64_t behind = scene.submit("test_append", {folder.file("log"), "behind"});
  const std::int64_t kept = scene.submit("test_append", {folder.file("log"), "kept"});
  scene.poll();
  REQUIRE(scene.tasks_of(*worker) == 3);
  const std::int64_t waiting = scene.submit({.demand = {.cpus = 0.5}}, "test_append", {folder.file("log"), "waiting"});
  scene.poll();
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
  scene.poll();
  CHECK(scene.outcomes.size() == 5);
}

TEST_CASE("a cancelled task that is queued at a worker is dropped there") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t running = scene.begin_waiting(folder, "running");
  const std::int64_t behind = scene.submit("test_append", {folder.file("log"), "behind"});
  scene.poll();
  REQUIRE(scene.tasks_of(*worker) == 2);
  scene.engine.cancel(behind);
  folder.touch("running.go");
  CHECK(scene.outcome(running).worker == worker->name());
  CHECK(scene.outcome(scene.submit("test_square", {1})).worker == worker->name());
  CHECK_FALSE(folder.has("log"));
}

TEST_CASE("cancel_waiting() does not cancel tasks that were sent to a worker") {
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

TEST_CASE("cancel_waiting() does not cancel a task that can begin at once, even before the next poll") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t submitted = scene.submit("test_square", {3});
  scene.engine.cancel_waiting();
  CHECK(scene.outcome(submitted).kind == Kind::reply);
}

TEST_CASE("a task that runs for too long ends with its worker, and its outcome says what it was doing") {
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

TEST_CASE("each poll uses the waker that it is given, or none") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker();
  auto [waker, wakes] = Channel::pair();
  scene.engine.poll(0, &waker);
  wakes.send(1);
  scene.engine.poll(0);  // does not look at it
  CHECK(waker.ready());
  scene.engine.poll(10, &waker);
  CHECK_FALSE(waker.ready());
}

}  // namespace miniray
