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
    driver.add_node("here", NodeResources(static_cast<double>(workers), 0, {}), {});
    driver.start({});
    for (std::shared_ptr<Worker>& worker : forked) driver.add_worker(0, std::move(worker), true);
    terms = driver.terms({}, {}, 0);
  }

  bool submit(const std::string& function, List arguments, bool late = false) {
    Task task;
    task.number = driver.next_number();
    task.terms = terms;
    const Value body = call_body(function, std::move(arguments));
    task.call = call_message(CallVerb::call, body, task.number);
    return driver.submit(std::move(task), late);
  }
  void take_news_until_the_end() {
    while (!driver.is_finished()) {
      std::optional<TaskDriver::News> news = driver.wait_news();
      REQUIRE(news);
      for (TaskOutcome& outcome : news->outcomes) {
        CHECK(!outcomes.contains(outcome.task.number));
        outcomes.emplace(outcome.task.number, std::move(outcome));
      }
      for (const TaskDriver::Vacancy& vacancy : news->vacancies) vacant += vacancy.node == 0 ? 1 : 0;
    }
  }
  [[nodiscard]] std::size_t count(TaskOutcome::Kind kind) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(outcomes, [&](const auto& entry) { return entry.second.kind == kind; }));
  }

  TaskDriver driver;
  std::shared_ptr<const TaskTerms> terms;
  std::map<std::int64_t, TaskOutcome> outcomes;
  std::size_t vacant = 0;
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

TEST_CASE("tasks are refused once that was said, late ones until the end") {
  DriverScene scene(1);
  scene.driver.refuse_tasks();
  CHECK(!scene.submit("test_square", {1}));
  CHECK(scene.submit("test_square", {2}, true));
  scene.take_news_until_the_end();
  CHECK(scene.count(TaskOutcome::Kind::reply) == 1);
  scene.driver.cancel_all();
  CHECK(!scene.submit("test_square", {3}, true));
}

TEST_CASE("all tasks are cancelled, those that run too, and the workers end in a hurry") {
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

TEST_CASE("a worker that dies leaves a vacancy") {
  DriverScene scene(1);
  CHECK(scene.submit("test_die", {}));
  scene.driver.refuse_tasks();
  scene.take_news_until_the_end();
  CHECK(scene.count(TaskOutcome::Kind::died) == 1);
  while (scene.vacant == 0) {
    const std::optional<TaskDriver::News> news = scene.driver.wait_news();
    REQUIRE(news);
    scene.vacant += news->vacancies.size();
  }
  CHECK(scene.driver.workers().empty());
}

TEST_CASE("terms that no node can meet are refused") {
  DriverScene scene(1);
  CHECK_THROWS_WITH_AS((void)scene.driver.terms({.cpus = 2}, {}, 0), doctest::Contains("no node can ever run a task"),
                       UsageError);
}

}  // namespace miniray
