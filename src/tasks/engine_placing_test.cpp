// Who gets what, and how a pool begins and ends: the engine with real workers.
#include "tasks/engine_scene.hpp"

namespace miniray {

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

TEST_CASE("tasks of a node that can get no worker fail, until it has one again") {
  Scene scene;
  scene.add_node(1);
  scene.add_node(1, {}, "there");
  scene.add_worker();
  const std::shared_ptr<Worker> lost = scene.add_worker(serve_as_if_quick, 1);
  const TaskTerms bound{.demand = {.node = "there"}};
  CHECK(scene.value(scene.submit(bound, "test_square", {3})) == Value(9.0));
  scene.on_vacancy = nullptr;
  lost->kill(SIGKILL);
  scene.turn_until("a death", [&] { return scene.count("worker_died") == 1; });
  const std::int64_t waiting = scene.submit(bound, "test_square", {3});
  scene.poll();
  CHECK_FALSE(scene.outcomes.contains(waiting));  // another may come
  scene.engine.break_node(1, "enough");
  for (const std::int64_t number : {waiting, scene.submit(bound, "test_square", {4})}) {
    CHECK(scene.outcome(number).kind == Kind::broken);
    CHECK(scene.outcome(number).text == "no worker is left on there, and none takes the place of the last one: enough");
  }
  CHECK(scene.value(scene.submit("test_square", {5})) == Value(25.0));
  scene.add_worker(serve_as_if_quick, 1);
  CHECK(scene.value(scene.submit(bound, "test_square", {6})) == Value(36.0));
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
  scene.poll();
  CHECK(scene.engine.census().idle == 1);  // it is kept for the wide one
  CHECK(scene.engine.census().waiting == 4);
  folder.touch("running.go");
  (void)scene.outcome(running);
  (void)scene.outcome(wide);
  for (const std::int64_t number : narrow) (void)scene.outcome(number);
  CHECK(folder.lines("log") == std::vector<std::string>{"wide", "narrow", "narrow", "narrow"});
}

TEST_CASE(
    "spread chooses the node with the most free resources, pack the one with the least, and a task may name a node") {
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

TEST_CASE("a worker gets tasks when its initializer has returned") {
  const TestFolder folder;
  Scene scene(Scene::task(-1, {}, "test_wait", {folder.file("begun"), folder.file("go")}));
  scene.add_node(1);
  scene.add_worker(serve_calls);
  const std::int64_t number = scene.submit("test_square", {3});
  scene.turn_until("the beginning of the task", [&] { return folder.has("begun"); });
  scene.poll();
  CHECK(scene.engine.workers().at(0).state == "preparing");
  CHECK(scene.engine.census().waiting == 1);
  folder.touch("go");
  CHECK(scene.value(number) == Value(9.0));
}

TEST_CASE("an initializer that raises breaks the pool; if a worker dies in it, the pool says so") {
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
  dying.turn_until("a death at the start", [&] { return dying.count("worker_stillborn") == 1; });
}

TEST_CASE("after a breakdown, waiting and new tasks fail, running ones finish, and no task is tried again") {
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
  scene.poll();
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

TEST_CASE("a task that is taken back from a worker after the pool broke down has an outcome") {
  const TestFolder folder;
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.learn_that_tasks_are_quick();
  const std::int64_t runs = scene.begin_waiting(folder, "runs");
  const std::int64_t behind = scene.submit("test_square", {3});
  scene.poll();
  REQUIRE(scene.tasks_of(*worker) == 2);
  scene.engine.break_down("the lights went out");
  CHECK(scene.outcome(behind).kind == Kind::broken);  // once its lease is over
  folder.touch("runs.go");
  CHECK(scene.outcome(runs).kind == Kind::reply);
}

TEST_CASE("a worker that has to end while its initializer runs gets no tasks, whatever the initializer does") {
  const TestFolder folder;
  Scene scene(Scene::task(-1, {}, "test_wait", {folder.file("begun"), folder.file("go")}));
  scene.add_node(1);
  const auto worker = scene.add_worker();
  scene.turn_until("the beginning of the task", [&] { return folder.has("begun"); });
  scene.engine.cancel_all();
  folder.touch("go");
  scene.turn_until("a reply", [&] { return worker->channel().arrived() > 0; });
  scene.poll();
  REQUIRE(scene.engine.workers().size() == 1);
  CHECK(scene.engine.workers()[0].state == "ending");
}

}  // namespace miniray
