#include "tasks/task_queue.hpp"

#include <doctest/doctest.h>

#include "miniray/limits.hpp"

namespace miniray {
namespace {

std::shared_ptr<const TaskTerms> asking_for(double cpus) {
  auto terms = std::make_shared<TaskTerms>();
  terms->demand.cpus = cpus;
  return terms;
}

Task task(std::int64_t number, double cpus = 1) {
  Task made;
  made.number = number;
  made.terms = asking_for(cpus);
  return made;
}

std::vector<std::int64_t> numbers(const std::vector<Task>& tasks) {
  std::vector<std::int64_t> all;
  for (const Task& each : tasks) all.push_back(each.number);
  return all;
}

}  // namespace

TEST_CASE("tasks with equal demands are one queue, and the queue whose first task is oldest comes first") {
  TaskQueue queue;
  queue.add(task(1, 2));
  queue.add(task(2));
  queue.add(task(3, 2));
  CHECK(queue.size() == 3);
  REQUIRE(queue.waiting().size() == 2);
  TaskLine& wide = *queue.waiting()[0];
  CHECK(wide.demand.cpus == 2);
  CHECK(wide.size() == 2);
  CHECK(queue.take_first(wide).number == 1);
  CHECK(queue.waiting()[0]->first_number() == 2);
  CHECK(queue.take_first(wide).number == 3);
  CHECK(wide.empty());
  CHECK(queue.waiting().size() == 1);
  CHECK(queue.size() == 1);
}

TEST_CASE("tasks that did not begin are put back at the front, in their order") {
  TaskQueue queue;
  for (int i = 1; i <= 4; ++i) queue.add(task(i));
  TaskLine& line = *queue.waiting()[0];
  Task first = queue.take_first(line), second = queue.take_first(line);
  queue.put_back(std::move(second));
  queue.put_back(std::move(first));
  CHECK(numbers(queue.take_all()) == std::vector<std::int64_t>{1, 2, 3, 4});
  CHECK(queue.size() == 0);
  CHECK(queue.waiting().empty());
}

TEST_CASE("a task is found by its number, even if it was put back late") {
  TaskQueue queue;
  for (const int number : {1, 4, 2, 7, 5}) queue.add(task(number));
  queue.add(task(6, 2));
  for (const int number : {4, 2, 6, 5}) {
    CHECK(queue.remove(number)->number == number);
    CHECK_FALSE(queue.remove(number));
  }
  CHECK_FALSE(queue.remove(3));
  CHECK(numbers(queue.take_all()) == std::vector<std::int64_t>{1, 7});
}

TEST_CASE("the shorter the tasks are, the more of them are queued at a worker") {
  TaskQueue queue;
  TaskLine& line = queue.line_of({});
  CHECK(line.tasks_ahead() == 0);  // it is not known how long they take
  line.measured(limits::work_ahead_ms * 1'000'000LL);
  CHECK(line.tasks_ahead() == 1);
  for (int i = 0; i < 100; ++i) line.measured(1000);
  CHECK(line.tasks_ahead() == limits::tasks_ahead_max);
  for (int i = 0; i < 100; ++i) line.measured(10'000'000'000);
  CHECK(line.tasks_ahead() == 0);
  CHECK(queue.line_of({.cpus = 2}).tasks_ahead() == 0);
}

}  // namespace miniray
