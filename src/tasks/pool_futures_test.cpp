// Typed tasks, and what can be done with the futures of tasks.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <thread>
#include <vector>

#include "miniray/coroutine.hpp"
#include "miniray/pool.hpp"
#include "miniray/std_future.hpp"
#include "tests/local_node.hpp"
#include "tests/task_functions.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

using namespace std::chrono_literals;

double tasks_half(double x) { return x / 2; }
constexpr auto tasks_square = [](double x) { return x * x; };

// src/calls/typed_calls_test.cpp has another one of the same name.
auto lambda_of_this_file() {
  return [](int x) { return x + 2000; };
}

Future<double> sum_of_tasks(Pool& pool, int count) {
  std::vector<TaskFuture<double>> futures;
  for (int i = 1; i <= count; ++i) futures.push_back(pool.submit(tasks_square, i));
  double sum = 0;
  for (const auto& future : futures) sum += co_await future;
  co_return sum;
}

// Says what became of it, and tries to go on.
Future<void> follow_task(Pool& pool, TaskFuture<void> awaited, std::string& log) {
  try {
    co_await awaited;
  } catch (const Cancelled&) {
    log += "cancelled";
  }
  try {
    (void)pool.submit(tasks_square, 2);
  } catch (const UsageError& error) {
    log += std::string(", ") + error.what();
  }
}

}  // namespace

TEST_CASE("typed tasks: registered functions, lambdas, fn<> and ranges") {
  registry().add("tasks_half", tasks_half);
  Pool pool(2);
  static_assert(std::is_same_v<decltype(pool.submit(tasks_half, 3)), TaskFuture<double>>);
  CHECK(pool.submit(tasks_half, 3).get() == 1.5);
  CHECK(pool.submit(fn<tasks_half>, 5).get(10s) == 2.5);
  CHECK(pool.with({.timeout_s = 60s, .retries = 1}).submit([](int a, int b) { return a + b; }, 1, 2).get() == 3);
  CHECK(pool.submit([] { return getpid(); }).get() != getpid());
  pool.submit([] {}).get();
  CHECK(pool.submit(lambda_of_this_file(), 1).get() == 2001);
  CHECK(pool.map(tasks_half, std::views::iota(0, 4)) == std::vector<double>{0, 0.5, 1, 1.5});
  CHECK(pool.map(tasks_square, std::vector{1, 2, 3}, {.chunk_size = 1, .timeout_s = 30s}) ==
        std::vector<double>{1, 4, 9});
  CHECK(pool.map<int>("test_echo", std::views::iota(0, 3)) == std::vector<int>{0, 1, 2});
  CHECK_THROWS_WITH_AS(
      (void)pool.map([](int x) { return x < 2 ? x : throw std::out_of_range("too large"); }, std::views::iota(0, 4)),
      doctest::Contains("too large"), CallError);
}

TEST_CASE("typed tasks run on the nodes of a cluster, to which this program was copied") {
  Cluster cluster({local(2)});
  Pool pool(cluster);
  CHECK(pool.submit(tasks_square, 7).get() == 49);
  CHECK(pool.submit(fn<tasks_half>, 5).get() == 2.5);
  CHECK(pool.map([](const std::string& text) { return text.size(); }, std::vector<std::string>{"a", "bc"}) ==
        std::vector<std::size_t>{1, 2});
  CHECK_THROWS_WITH_AS(pool.submit("registered_after_init").get(),
                       doctest::Contains("main() goes no further than miniray::init: call registry().add before it"),
                       CallError);
}

TEST_CASE("a TaskTimeout is a TimeoutError") {
  const TestFolder folder;
  Pool pool(1);
  const auto stuck = pool.with({.timeout_s = 100ms}).submit<void>("test_wait_for", folder.file("go"));
  CHECK_THROWS_AS(stuck.get(), TimeoutError);
  CHECK_THROWS_AS(stuck.get(), TaskTimeout);
}

TEST_CASE("continuations, coroutines and std::futures of tasks") {
  Pool pool(2);
  const auto four = pool.submit(tasks_square, 2).then([&](double x) { return pool.submit(fn<tasks_half>, x); });
  CHECK_THROWS_AS((void)TaskFuture<double>().get(), UsageError);
  CHECK(when_all(pool.submit(tasks_square, 3), pool.submit(tasks_square, 4)).get() == std::tuple(9.0, 16.0));
  CHECK(sum_of_tasks(pool, 10).get(30s) == 385);
  std::future<double> standard = pool.submit(tasks_square, 5);
  CHECK(standard.get() == 25);
  CHECK(four.get() == 2);
}

TEST_CASE("when_any waits for tasks and calls of several pools and workers at once") {
  const TestFolder folder;
  Pool first(1), second(1);
  Worker worker(serve_calls);
  Caller caller(worker);
  const auto slow = first.submit<void>("test_wait_for", folder.file("first"));
  const auto slower = second.submit<void>("test_wait_for", folder.file("second"));
  const auto call = caller.call_async<void>("test_wait_for", folder.file("third"));
  const auto any = when_any(slow, slower, call);
  CHECK_FALSE(any.wait(10ms));
  folder.touch("third");
  CHECK(any.get(30s) == 2);
  CHECK_FALSE(when_any(slow, slower).wait(10ms));
  folder.touch("second");
  CHECK(when_any(slow, slower).get(30s) == 1);
  folder.touch("first");
  when_all(slow, slower, call).get(30s);
}

TEST_CASE("a pool that is destroyed resumes its coroutines with Cancelled, and fails its continuations") {
  const TestFolder folder;
  std::string log;
  std::optional<Future<void>> coroutine;
  std::optional<Future<int>> after;
  {
    Pool pool(1);
    const auto waits = pool.submit<void>("test_wait_for", folder.file("go"));
    coroutine = follow_task(pool, waits, log);
    after = waits.then([] { return 1; });
    folder.touch("go");
  }
  CHECK(log == "cancelled, the pool has been shut down, and takes no more tasks");
  CHECK(coroutine->ready());
  CHECK_THROWS_AS((void)after->get(), Cancelled);
}

TEST_CASE("several threads wait for one continuation, which runs once") {
  Pool pool(2);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> called = 0, right = 0;
    const auto after = pool.submit(tasks_square, 3).then([&](double x) {
      ++called;
      return x + 1;
    });
    const auto further = after.then([&](double x) { return pool.submit(tasks_square, x); });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        if (i % 2 == 0 ? after.get() == 10 : further.get() == 100) ++right;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(called == 1);
    CHECK(right == 4);
  }
}

TEST_CASE("a thread that waits for a continuation which another thread runs does not run it too") {
  const TestFolder folder;
  Pool pool(1);
  std::atomic<int> called = 0;
  std::atomic<bool> may_end = false;
  const auto nine = [](const std::string& file) {
    wait_for_file(file);
    return 9.0;
  };
  // The task is not done before then() has returned, which would otherwise call the continuation itself.
  const auto after = pool.submit(nine, folder.file("go")).then([&](double x) {
    if (++called == 1) wait_until("the other thread", [&] { return may_end.load(); });
    return x;
  });
  folder.touch("go");
  std::thread runs([&] { (void)after.get(); });
  wait_until("the continuation", [&] { return called == 1; });
  CHECK_FALSE(after.wait(10ms));
  CHECK_FALSE(after.ready());
  CHECK(called == 1);
  may_end = true;
  CHECK(after.get() == 9);
  runs.join();
}

TEST_CASE("a callback may wait for a coroutine or a continuation that the same reply has made due") {
  const TestFolder folder;
  Pool pool(1);
  const auto wait_and_return = [](const std::string& file) {
    wait_for_file(file);
    return 9.0;
  };
  const auto task = pool.submit(wait_and_return, folder.file("go"));
  std::optional<Future<double>> after, coroutine;
  double from_callback = 0;
  task.on_done([&](const TaskFuture<double>&) { from_callback = after->get(10s) + coroutine->get(10s); });
  after = task.then([](double x) { return x + 1; });
  coroutine = [](TaskFuture<double> awaited) -> Future<double> { co_return 2 * co_await awaited; }(task);
  folder.touch("go");
  CHECK(task.get() == 9);
  CHECK(from_callback == 28);
}

}  // namespace miniray
