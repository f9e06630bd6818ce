#include "tasks/driver.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "calls/call_format.hpp"
#include "miniray/calls.hpp"
#include "tests/task_functions.hpp"

namespace miniray {
namespace {

/// A driver with workers, and whoever takes its news until there are no more.
class DriverScene {
 public:
  explicit DriverScene(std::size_t workers) {
    std::vector<std::shared_ptr<Worker>> forked;  // before there is a thread
    for (std::size_t i = 0; i < workers; ++i) forked.push_back(std::make_shared<Worker>(serve_calls));
    driver.add_node({.name = "here", .cpus = static_cast<double>(workers)});
    driver.start(TaskDriver::Runs::in_a_thread, program_source(), {});
    for (std::shared_ptr<Worker>& worker : forked) driver.add_worker(0, std::move(worker));
    terms = driver.terms({});
  }

  bool submit(const std::string& function, List arguments, bool of_map = false) {
    Task task;
    task.of_map = of_map;
    task.number = driver.next_number();
    task.terms = terms;
    const Value body = call_body(function, std::move(arguments));
    task.call = call_message(CallVerb::call, body, task.number);
    return driver.submit(std::move(task));
  }
  void take_news() {
    std::optional<TaskDriver::News> news = driver.wait_news(Deadline::in_seconds(1));
    REQUIRE(news);
    for (TaskOutcome& outcome : news->outcomes) {
      CHECK(!outcomes.contains(outcome.task.number));
      outcomes.emplace(outcome.task.number, std::move(outcome));
    }
    tickets.insert(tickets.end(), news->tickets.begin(), news->tickets.end());
  }
  void take_news_until_the_end() {
    for (const Patience patience("the driver's last outcome"); !driver.is_finished(); patience.check()) take_news();
  }
  std::shared_ptr<Ticket> next_ticket() {
    for (const Patience patience("a place to fill"); tickets.empty(); patience.check()) take_news();
    std::shared_ptr<Ticket> ticket = tickets.front();
    tickets.erase(tickets.begin());
    return ticket;
  }
  [[nodiscard]] std::size_t count(TaskOutcome::Kind kind) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(outcomes, [&](const auto& entry) { return entry.second.kind == kind; }));
  }

  EventLog events;
  TaskDriver driver{events};
  std::shared_ptr<const TaskTerms> terms;
  std::map<std::int64_t, TaskOutcome> outcomes;
  std::vector<std::shared_ptr<Ticket>> tickets;
};

}  // namespace

TEST_CASE("any thread may submit, and each task has one outcome") {
  DriverScene scene(2);
  constexpr int threads = 4, tasks = 200;
  std::vector<std::thread> submitters;
  for (int i = 0; i < threads; ++i)
    submitters.emplace_back([&] {
      for (int task = 0; task < tasks; ++task)
        if (!scene.submit("test_square", {task})) std::abort();
    });
  std::thread taker([&] { scene.take_news_until_the_end(); });
  for (std::thread& thread : submitters) thread.join();
  scene.driver.refuse_tasks();
  scene.driver.nudge();
  taker.join();
  CHECK(scene.outcomes.size() == threads * tasks);
  CHECK(scene.count(TaskOutcome::Kind::reply) == threads * tasks);
  CHECK(scene.driver.census().workers == 2);
  scene.driver.stop();
  CHECK(!scene.driver.wait_news());
  CHECK(scene.driver.census().workers == 0);
}

TEST_CASE("after refuse_tasks() new tasks are refused, but chunks of a map are taken until the end") {
  DriverScene scene(1);
  scene.driver.refuse_tasks();
  CHECK(!scene.submit("test_square", {1}));
  CHECK(scene.submit("test_square", {2}, true));
  scene.take_news_until_the_end();
  CHECK(scene.count(TaskOutcome::Kind::reply) == 1);
  scene.driver.cancel_all();
  CHECK(!scene.submit("test_square", {3}, true));
}

TEST_CASE("cancel_all() cancels all tasks, also those that run, and the workers end quickly") {
  const TestFolder folder;
  DriverScene scene(2);
  for (int i = 0; i < 10; ++i) CHECK(scene.submit("test_wait_for", {folder.file("never")}));
  scene.driver.refuse_tasks();
  scene.driver.hurry(Closing::kill);
  scene.driver.cancel_all();
  scene.take_news_until_the_end();
  CHECK(scene.count(TaskOutcome::Kind::cancelled) == 10);
  scene.driver.stop();
}

TEST_CASE("the program is asked to replace a worker that died, until it does") {
  auto another = std::make_shared<Worker>(serve_calls);  // before there is a thread
  DriverScene scene(1);
  CHECK(scene.submit("test_die", {}));
  CHECK(scene.submit("test_square", {3}));
  const std::shared_ptr<Ticket> first = scene.next_ticket();
  CHECK(first->node == 0);
  CHECK(scene.driver.workers().empty());
  first->fail("not now");
  const std::shared_ptr<Ticket> second = scene.next_ticket();
  CHECK(second != first);
  CHECK(second->gone == first->gone);
  second->fill(std::move(another));
  scene.driver.refuse_tasks();
  scene.take_news_until_the_end();
  CHECK(scene.count(TaskOutcome::Kind::died) == 1);
  CHECK(scene.count(TaskOutcome::Kind::reply) == 1);
  CHECK(scene.events.events("node_lost").at(0).text == "not now");
  CHECK(scene.events.events("node_back").size() == 1);
}

TEST_CASE("the pool is broken when the program refuses to replace the last worker") {
  DriverScene scene(2);
  CHECK(scene.submit("test_die", {}));
  CHECK(scene.submit("test_die", {}));
  const std::shared_ptr<Ticket> first = scene.next_ticket();
  scene.driver.refuse_tasks();
  first->refuse("there is no room");
  const std::shared_ptr<Ticket> second = scene.next_ticket();  // one place of a node after another
  CHECK(scene.submit("test_square", {3}, true));
  CHECK(!scene.driver.broken());
  second->refuse("there is none");
  scene.take_news_until_the_end();
  CHECK(scene.count(TaskOutcome::Kind::broken) == 1);
  CHECK(scene.driver.broken() == "no worker is left, and none takes the place of the last one: there is none");
}

TEST_CASE("terms that no node can meet are refused") {
  DriverScene scene(1);
  CHECK_THROWS_WITH_AS((void)scene.driver.terms({.demand = {.cpus = 2}}),
                       doctest::Contains("no node can ever run a task"), UsageError);
}

}  // namespace miniray
