// Pools that are destroyed while other threads wait for them, or by their own callbacks, or used by a fork's child.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "miniray/pool.hpp"
#include "tests/task_functions.hpp"

namespace miniray {
namespace {

// Returns what the call came to: "Cancelled", or something else.
std::string end_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Cancelled&) {
    return "Cancelled";
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Two workers that an interrupt ends without a report of the test program.
std::vector<Worker> quiet_workers() {
  std::vector<Worker> workers;
  for (int i = 0; i < 2; ++i)
    workers.emplace_back([](Handle& handle) {
      signal(SIGINT, SIG_DFL);
      serve_calls(handle);
    });
  return workers;
}

}  // namespace

TEST_CASE("a pool that is destroyed tells the threads that wait for it, and waits until they have left") {
  const TestFolder folder;
  auto pool = std::make_unique<Pool>(quiet_workers());
  const std::vector<std::string> files{folder.file("first"), folder.file("second")};
  std::vector<TaskFuture<void>> futures;
  for (const std::string& file : files) futures.push_back(pool->submit<void>("test_wait", file, folder.file("go")));
  const auto queued = pool->submit<int>("test_echo", 1);
  std::vector<std::function<void()>> calls;
  for (const TaskFuture<void>& future : futures) calls.emplace_back([&] { future.get(); });
  calls.emplace_back([&] { (void)queued.get(60.0); });
  calls.emplace_back(
      [&pool = *pool] { (void)pool.map<int>("test_echo", std::vector<int>(100, 1), {.chunk_size = 100}); });
  std::vector<std::string> ends(calls.size());
  std::atomic<std::size_t> begun = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < calls.size(); ++i)
    threads.emplace_back([&, i] {
      ends[i] = end_of([&] {
        ++begun;
        calls[i]();
      });
    });
  folder.wait_for("first");
  folder.wait_for("second");
  // The map must be in the pool before it goes: then there is one task more.
  wait_until("the tasks of the threads", [&] {
    const PoolStatus status = pool->status();
    return begun == calls.size() && status.queued + status.running >= 4;
  });
  pool.reset();
  for (std::thread& thread : threads) thread.join();
  for (const std::string& end : ends) CHECK(end == "Cancelled");
}

TEST_CASE("a callback may destroy the pool whose call runs it") {
  // Each lets the first task end, whose callback destroys the pool, when nothing but one call of the pool is to come.
  using Go = std::function<void()>;
  const std::vector<std::function<void(Pool&, const Go&)>> uses{
      [](Pool& pool, const Go& go) {
        go();
        pool.shutdown();
      },
      [](Pool& pool, const Go& go) {
        const auto future = pool.submit<int>("test_echo", 2);
        go();
        (void)future.wait(60.0);
      },
      [](Pool& pool, const Go& go) {
        const std::vector futures{pool.submit<int>("test_echo", 2)};
        go();
        (void)pool.wait_any(futures, 60.0);
      }};
  for (const auto& use : uses) {
    const TestFolder folder;
    auto pool = std::make_unique<Pool>(1);
    const auto first = pool->submit<void>("test_wait", folder.file("begun"), folder.file("go"));
    first.on_done([&](const TaskFuture<void>&) { pool.reset(); });
    folder.wait_for("begun");
    use(*pool, [&] { folder.touch("go"); });
    CHECK_FALSE(pool);
    CHECK_NOTHROW(first.get());
  }
}

TEST_CASE("a view and the futures of a pool that was destroyed can still be asked, and throw") {
  auto pool = std::make_unique<Pool>(1);
  const PoolView view = pool->with({.retries = 1});
  const auto future = view.submit<int>("test_echo", 1);
  pool.reset();
  CHECK_THROWS_WITH_AS((void)view.submit<int>("test_echo", 1), doctest::Contains("the pool is gone"), UsageError);
  CHECK_THROWS_WITH_AS((void)view.with({}), doctest::Contains("the pool is gone"), UsageError);
  CHECK(future.ready());
  CHECK_FALSE(future.cancel());
}

TEST_CASE("a view that was moved, also out of its pool, can be used further") {
  Pool pool(1);
  PoolView view = pool.with({.retries = 1});
  PoolView other = std::move(view);
  CHECK(other.submit<int>("test_echo", 1).get() == 1);
  CHECK(view.submit<int>("test_echo", 2).get() == 2);
  other = std::move(pool);
  CHECK(other.submit<int>("test_echo", 3).get() == 3);
  CHECK(pool.submit<int>("test_echo", 4).get() == 4);
}

TEST_CASE("whatever on_interrupt throws, the destructor of a busy pool ends its workers and throws nothing") {
  for (const bool standard : {true, false}) {
    CAPTURE(standard);
    const TestFolder folder;
    bool thrown = false;
    pid_t pid = 0;
    {
      WorkerOptions options;
      options.on_interrupt = [&] {
        if (pid == 0) return;
        thrown = true;
        standard ? throw std::runtime_error("an interrupt") : throw 42;
      };
      std::vector<Worker> workers;
      workers.emplace_back(
          [](Handle& handle) {
            signal(SIGINT, SIG_IGN);
            serve_calls(handle);
          },
          options);
      Pool pool(std::move(workers));
      const auto future = pool.submit<void>("test_wait", folder.file("begun"), folder.file("never"));
      wait_until("the begin of the task", [&] {
        REQUIRE_FALSE(future.ready());
        return folder.has("begun");
      });
      pid = static_cast<pid_t>(pool.workers().at(0).pid);
    }
    CHECK(thrown);
    CHECK(kill(pid, 0) == -1);
  }
}

TEST_CASE("a forked child cannot use its parent's pool, and the pool goes on in the parent") {
  Pool pool(1);
  const auto future = pool.submit<int>("test_echo", 1);
  const pid_t child = fork();
  if (child == 0) {
    const auto is_refused = [](const std::function<void()>& call) {
      return end_of(call).starts_with("the pool belongs to the process that made it");
    };
    const bool all = is_refused([&] { (void)pool.submit<int>("test_echo", 1); }) &&
                     is_refused([&] { (void)pool.map<int>("test_echo", std::vector{1}); }) &&
                     is_refused([&] { (void)pool.status(); }) && is_refused([&] { pool.shutdown(); }) &&
                     (future.pending()->done() || is_refused([&] { (void)future.get(); }));
    _exit(all ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(future.get() == 1);
  CHECK(pool.submit<int>("test_echo", 2).get() == 2);
}

}  // namespace miniray
