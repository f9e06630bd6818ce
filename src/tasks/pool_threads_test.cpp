// One pool, used by many threads at once.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "miniray/pool.hpp"
#include "tests/task_functions.hpp"

namespace miniray {
namespace {

constexpr int rounds = 100;

// Runs the function in several threads at once; it is given their numbers. Returns how many of them threw.
int count_failures(int threads, const std::function<void(int)>& function) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number)
    running.emplace_back([&, number] {
      try {
        function(number);
      } catch (const std::exception& error) {
        ++failures;
        std::fprintf(stderr, "thread %d: %s\n", number, error.what());
      }
    });
  for (std::thread& thread : running) thread.join();
  return failures;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace

TEST_CASE("several threads can submit, map, wait, cancel and ask for the status of one pool") {
  Pool pool(2);
  std::atomic<int> told = 0;
  const std::array<std::function<void()>, 5> users{
      [&] {
        for (int i = 0; i < rounds; ++i) require(pool.submit<int>("test_echo", i).get() == i, "a wrong result");
      },
      [&] {
        std::vector<int> items;
        for (int i = 0; i < rounds; ++i) items.push_back(i);
        for (int i = 0; i < rounds / 10; ++i) require(pool.map<int>("test_echo", items) == items, "a wrong map");
      },
      [&] {
        for (int i = 0; i < rounds; ++i)
          pool.submit<int>("test_echo", i).on_done([&, i](const TaskFuture<int>& done) {
            require(done.get() == i, "a wrong callback");
            ++told;
          });
      },
      [&] {
        for (int i = 0; i < rounds; ++i) {
          const std::vector futures{pool.submit<int>("test_echo", 1), pool.submit<int>("test_echo", 2)};
          require(!pool.wait_any(futures).empty(), "nothing is done");
          (void)futures[0].cancel();
          require(futures[1].get() == 2, "a wrong result");
        }
      },
      [&] {
        for (int i = 0; i < rounds; ++i) {
          (void)pool.status();
          (void)pool.workers();
          (void)pool.events().events();
          require(pool.with({.retries = 1}).submit<double>("test_square", 3).get() == 9, "a wrong result");
        }
      }};
  CHECK(count_failures(10, [&](int number) { users[static_cast<std::size_t>(number) % users.size()](); }) == 0);
  pool.shutdown();
  CHECK(told == 2 * rounds);
}

TEST_CASE("a future is waited for by several threads, and a worker that dies meanwhile harms one task only") {
  Pool pool(2);
  const auto dies = pool.submit<void>("test_die");
  const auto square = pool.with({.retries = 3}).submit<double>("test_square", 5);
  std::atomic<int> deaths = 0;
  CHECK(count_failures(6, [&](int number) {
          if (number % 2 == 0) return require(square.get() == 25, "a wrong result");
          try {
            dies.get();
          } catch (const WorkerDied&) {
            ++deaths;
          }
        }) == 0);
  CHECK(deaths == 3);
}

TEST_CASE("a shutdown finishes the tasks and maps of other threads, which can begin no more") {
  Pool pool(2);
  const std::vector<int> items(rounds, 1);
  std::atomic<int> refused = 0;
  CHECK(count_failures(6, [&](int number) {
          if (number < 2) return pool.shutdown();
          try {
            while (true) {
              require(pool.submit<int>("test_echo", number).get() == number, "a wrong result");
              require(pool.map<int>("test_echo", items, {.chunk_size = 1}) == items, "a wrong map");
            }
          } catch (const UsageError&) {  // the pool has been shut down
            ++refused;
          }
        }) == 0);
  CHECK(refused == 4);
}

}  // namespace miniray
