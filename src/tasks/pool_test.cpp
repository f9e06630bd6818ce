// Pools of forked workers, of given ones, and on clusters of local nodes.
#include "miniray/pool.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <numeric>
#include <set>

#include "miniray/miniray.hpp"
#include "tests/local_node.hpp"
#include "tests/sanitized.hpp"
#include "tests/task_functions.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

std::vector<int> numbers_to(int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool lives(std::int64_t pid) { return kill(static_cast<pid_t>(pid), 0) == 0; }

// A task that has begun and goes on until `name`.go is there.
TaskFuture<void> begin_waiting(const PoolView& pool, const TestFolder& folder, const std::string& name) {
  const auto future = pool.submit<void>("test_wait", folder.file(name + ".begun"), folder.file(name + ".go"));
  wait_until("the begin of the task " + name, [&] {
    REQUIRE_FALSE(future.ready());
    return folder.has(name + ".begun");
  });
  return future;
}

}  // namespace

TEST_CASE("the header's example") {
  Pool pool(2);
  const auto future = pool.submit<double>("test_square", 3);
  CHECK(future.get() == 9.0);
  CHECK(future.get(0.0) == 9.0);
  CHECK(future.ready());
  CHECK(future.wait(0));
  CHECK_FALSE(future.cancel());
  CHECK(pool.map<double>("test_square", std::vector<double>{1, 2, 3}) == std::vector<double>{1, 4, 9});
  CHECK(pool.with({.num_cpus = 2, .retries = 2}).submit<double>("test_square", 4).get() == 16.0);
  CHECK(pool.submit("test_echo", List{1, "two"}).get() == Value(List{1, "two"}));
  pool.submit<void>("test_echo", nullptr).get();
}

TEST_CASE("many tasks, on all workers") {
  Pool pool(3);
  std::vector<TaskFuture<double>> futures;
  for (int i = 0; i < 2000; ++i) futures.push_back(pool.submit<double>("test_square", i));
  for (int i = 0; i < 2000; ++i) CHECK(futures[static_cast<std::size_t>(i)].get() == double(i) * i);
  const PoolStatus status = pool.status();
  CHECK(status.done == 2000);
  CHECK(status.failed == 0);
  CHECK(status.queued == 0);
  CHECK(status.workers == 3);
  CHECK(status.idle == 3);
  CHECK(pool.workers().size() == 3);
  CHECK(pool.workers()[0].state == "idle");
  CHECK(pool.workers()[0].node == "localhost");
}

TEST_CASE("arguments are the task's own") {
  const TestFolder folder;
  Pool pool(1);
  const auto blocks = begin_waiting(pool, folder, "blocks");
  std::vector<double> numbers(100'000, 1.5);
  const auto sent = pool.submit<Array>("test_echo", Array::view<double>(numbers));
  const auto bytes = pool.submit<Bytes>("test_echo", Bytes{std::string(100'000, '\x80')});
  const auto again = pool.submit<Array>("test_echo", Array::view<double>(numbers));  // travels once
  const auto few = pool.submit<Array>("test_echo", Array::view<double>(std::span(numbers).first(10)));
  numbers.assign(numbers.size(), 0);
  const auto other = pool.submit<Array>("test_echo", Array::view<double>(numbers));
  folder.touch("blocks.go");
  blocks.get();
  CHECK(sent.get().elements<double>()[99'999] == 1.5);
  CHECK(again.get() == sent.get());
  CHECK(few.get().elements<double>()[9] == 1.5);
  CHECK(other.get().elements<double>()[99'999] == 0.0);
  CHECK(bytes.get().data == std::string(100'000, '\x80'));
}

TEST_CASE("the future of a task throws what went wrong with it") {
  Pool pool(1);
  try {
    pool.submit("test_raise", "no such layer").get();
    FAIL("no error");
  } catch (const CallError& error) {
    CHECK(error.type() == "std::out_of_range");
    CHECK(error.message() == "no such layer");
  }
  CHECK_THROWS_WITH_AS(pool.submit("no_such_function").get(), doctest::Contains("no_such_function"), CallError);
  CHECK_THROWS_WITH_AS(pool.submit<int>("test_echo", "x").get(),
                       "test_echo was asked for int, and its result is a string: \"x\"", ValueError);
  CHECK_THROWS_WITH_AS(pool.submit("test_echo", 1, std::string("\xff")),
                       "argument 2 of test_echo: cannot send a string that is not UTF-8 at msg: send miniray::Bytes",
                       Unsendable);
  CHECK_THROWS_WITH_AS(pool.submit("test_square", 1, Keywords{{"x", 1}}).get(),
                       doctest::Contains("takes no keyword arguments"), CallError);
  CHECK(pool.submit<double>("test_square", 3).get() == 9.0);
  CHECK(pool.status().failed == 3);
}

TEST_CASE("a worker that dies is replaced, and its task is tried as often as its terms allow") {
  const TestFolder folder;
  Pool pool(1);
  const auto before = pool.submit<std::int64_t>("test_pid").get();
  try {
    pool.submit("test_die").get();
    FAIL("no error");
  } catch (const WorkerDied& died) {
    CHECK(died.certificate().signal == SIGKILL);
    CHECK(std::string(died.what()).ends_with("It died while running test_die."));
  }
  CHECK(pool.submit<std::int64_t>("test_pid").get() != before);
  const PoolView thrice = pool.with({.retries = 2});
  CHECK(thrice.submit<int>("test_die_first", folder.file("twice"), 2).get() == 3);
  CHECK_THROWS_WITH_AS(thrice.submit<int>("test_die_first", folder.file("thrice"), 3).get(),
                       doctest::Contains("It died while running test_die_first, which was tried 3 times."), WorkerDied);
  CHECK(pool.events().events("worker_died").size() == 6);
  CHECK(pool.events().events("task_retried").size() == 4);
  CHECK(pool.events().events("task_retried").at(0).details["task"].integer() > 0);
}

TEST_CASE("a restart policy limits how often workers are replaced") {
  const TestFolder folder;
  Pool pool(1, {.restart = RestartPolicy{.max_restarts = 1, .window_s = 1000, .backoff_s = 0.01}});
  CHECK_THROWS_AS(pool.submit("test_die").get(), WorkerDied);
  CHECK(pool.submit<double>("test_square", 3).get() == 9.0);
  const auto dies = pool.submit("test_die_after", folder.file("die"), folder.file("no such folder/died"));
  const auto waits = pool.submit("test_square", 3);
  folder.touch("die");
  CHECK_THROWS_AS(dies.get(), WorkerDied);
  CHECK_THROWS_WITH_AS(waits.get(), doctest::Contains("no worker is left, and none takes the place of the last one"),
                       PoolBroken);
  CHECK_THROWS_AS(pool.submit("test_square", 3), PoolBroken);
  CHECK(pool.events().events("restart_refused").size() == 1);
  CHECK(pool.events().events("pool_broken").size() == 1);
}

TEST_CASE("a pool never gets the reply to a call that an earlier Caller made on its worker") {
  const TestFolder folder;
  std::vector<Worker> workers;
  workers.emplace_back(serve_calls);
  {
    Caller caller(workers[0]);
    for (int i = 0; i < 3; ++i) (void)caller.call_async<Value>("test_wait", folder.file("begun"), folder.file("go"));
    folder.wait_for("begun");
  }
  Pool pool(std::move(workers));
  const std::vector futures{pool.submit<int>("test_echo", 3), pool.submit<int>("test_echo", 4)};
  folder.touch("go");
  CHECK(futures[0].get() == 3);
  CHECK(futures[1].get() == 4);
  CHECK(pool.map<int>("test_echo", std::vector{5, 6}) == std::vector{5, 6});
}

TEST_CASE("workers that the program gives to a pool are replaced if it says how") {
  std::vector<Worker> workers;
  for (int i = 0; i < 2; ++i) workers.emplace_back(serve_calls);
  Pool pool(std::move(workers));
  CHECK(pool.map<double>("test_square", numbers_to(10)).back() == 81.0);
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(pool.submit("test_die").get(), WorkerDied);
  CHECK_THROWS_WITH_AS(pool.submit("test_die").get(), doctest::Contains("PoolOptions::replace is not set"), PoolBroken);

  std::vector<Worker> one;
  one.emplace_back(serve_calls);
  int made = 0;
  PoolOptions options;
  options.replace = [&](Worker&) {
    if (++made == 1) throw UsageError("not yet");
    return Worker(serve_calls);
  };
  Pool replaced(std::move(one), options);
  CHECK_THROWS_AS(replaced.submit("test_die").get(), WorkerDied);
  CHECK(replaced.submit<double>("test_square", 3).get() == 9.0);
  CHECK(made == 2);
  CHECK(replaced.events().events("node_lost").at(0).text == "not yet");
  CHECK(replaced.events().events("node_back").size() == 1);
  CHECK_THROWS_AS(Pool(std::vector<Worker>()), UsageError);
  CHECK_THROWS_AS(Pool(0), UsageError);
}

TEST_CASE("tasks can be cancelled while they wait and while they run") {
  const TestFolder folder;
  Pool pool(1);
  const auto runs = begin_waiting(pool, folder, "runs");
  const auto waits = pool.submit("test_append", folder.file("log"), "waits");
  const auto kept = pool.submit<double>("test_square", 3);
  CHECK(waits.cancel());
  CHECK_FALSE(waits.cancel());
  CHECK_THROWS_WITH_AS(waits.get(), "the task of test_append was cancelled", Cancelled);
  CHECK(runs.cancel());
  CHECK_THROWS_AS(runs.get(), Cancelled);
  CHECK(kept.get() == 9.0);
  CHECK_FALSE(folder.has("log"));
}

TEST_CASE("a task that runs for too long fails, and a caller may wait for a shorter time") {
  const TestFolder folder;
  Pool pool(1);
  const auto stuck =
      pool.with({.timeout_s = 0.1}).submit<void>("test_wait", folder.file("begun"), folder.file("never"));
  CHECK_THROWS_WITH_AS(stuck.get(), doctest::Contains("test_wait ran for more than 0.1 s in worker "), TaskTimeout);
  CHECK_THROWS_WITH_AS(stuck.get(), doctest::Contains("It was doing this:"), TaskTimeout);
  const auto runs = begin_waiting(pool, folder, "runs");
  CHECK_THROWS_WITH_AS(runs.get(0.01), doctest::Contains("is not done after 0.01 s; it goes on"), TimeoutError);
  CHECK_FALSE(runs.wait(0));
  folder.touch("runs.go");
  runs.get();
}

TEST_CASE("on_done and wait_any") {
  const TestFolder folder;
  Pool pool(2);
  const auto slow = begin_waiting(pool, folder, "slow");
  const auto quick = pool.submit<void>("test_echo", nullptr);
  CHECK(pool.wait_any(std::vector{slow, quick}) == std::vector<std::size_t>{1});
  CHECK(pool.wait_any(std::vector{slow}, 0.01).empty());
  int calls = 0;
  double squared = 0;
  slow.on_done([&](const TaskFuture<void>& future) {
    ++calls;
    CHECK(future.ready());
    squared = pool.submit<double>("test_square", 3).get();  // it may use the pool
  });
  quick.on_done([&](const TaskFuture<void>&) { ++calls; });
  CHECK(calls == 1);
  folder.touch("slow.go");
  slow.get();
  CHECK(calls == 2);
  CHECK(squared == 9.0);
  begin_waiting(pool, folder, "last").on_done([](const TaskFuture<void>&) { throw std::out_of_range("told"); });
  folder.touch("last.go");
  CHECK_THROWS_WITH_AS(pool.shutdown(), "told", std::out_of_range);
  pool.shutdown();
  CHECK_THROWS_AS((void)pool.wait_any(std::vector<TaskFuture<void>>()), UsageError);
}

TEST_CASE("shutdown() finishes the tasks that were submitted; the destructor of the pool does not") {
  const TestFolder folder;
  std::vector<TaskFuture<double>> futures;
  std::vector<PoolWorker> workers;
  {
    Pool pool(2);
    workers = pool.workers();
    for (int i = 0; i < 50; ++i) futures.push_back(pool.submit<double>("test_square", i));
    pool.shutdown();
    pool.shutdown();
    for (const PoolWorker& worker : workers) CHECK_FALSE(lives(worker.pid));
    CHECK_THROWS_WITH_AS(pool.submit("test_square", 1), "the pool has been shut down, and takes no more tasks",
                         UsageError);
    CHECK(pool.status().done == 50);
  }
  CHECK(futures[49].get() == 49.0 * 49.0);

  std::vector<TaskFuture<void>> unfinished;
  bool told = false;
  {
    Pool pool(1);
    workers = pool.workers();
    unfinished.push_back(begin_waiting(pool, folder, "runs"));
    unfinished.push_back(pool.submit<void>("test_append", folder.file("log"), "waits"));
    unfinished[0].on_done([&](const TaskFuture<void>&) { told = true; });
    folder.touch("runs.go");
  }
  CHECK_FALSE(lives(workers[0].pid));
  CHECK_FALSE(told);
  CHECK_FALSE(folder.has("log"));
  for (const auto& future : unfinished) {
    CHECK(future.ready());
    CHECK_THROWS_WITH_AS(future.get(), "the pool is gone, and did not finish this task", Cancelled);
  }
}

TEST_CASE("a task that can never fit is refused, and a task knows the names of its GPUs") {
  PoolOptions options;
  options.num_gpus = 2;
  options.resources = {{"licence", 1}};
  Pool pool(2, options);
  CHECK_THROWS_WITH_AS((void)pool.with({.num_cpus = 3}), doctest::Contains("localhost lacks num_cpus 3 (it has 2)"),
                       UsageError);
  CHECK_THROWS_AS((void)pool.with({.num_gpus = 3}), UsageError);
  CHECK_THROWS_AS((void)pool.with({.resources = {{"licence", 2}}}), UsageError);
  CHECK_THROWS_AS((void)pool.with({.node = "elsewhere"}), UsageError);
  CHECK_THROWS_AS((void)pool.with({.timeout_s = -1.0}), UsageError);
  CHECK_THROWS_AS((void)pool.with({.retries = -1}), UsageError);
  CHECK(pool.with({.num_gpus = 1, .resources = {{"licence", 1}}})
            .submit<std::string>("test_environment", "CUDA_VISIBLE_DEVICES")
            .get() == "0");
  CHECK(pool.with({.num_gpus = 2}).submit<std::string>("test_environment", "CUDA_VISIBLE_DEVICES").get() == "0,1");
}

// map

TEST_CASE("the results of a map are in order, whatever its chunks are") {
  Pool pool(2);
  const std::vector<int> items = numbers_to(5000);
  CHECK(pool.map<int>("test_echo", items) == items);
  CHECK(pool.map<int>("test_echo", items, {.chunk_size = 7}) == items);
  CHECK(pool.map<int>("test_echo", std::vector<int>()).empty());
  CHECK(pool.map("test_echo", std::vector<std::string>{"a", "b"}) == List{"a", "b"});
  CHECK(pool.with({.timeout_s = 100.0}).map<int>("test_echo", numbers_to(50)) == numbers_to(50));
  CHECK_THROWS_AS((void)pool.map<int>("test_echo", items, {.chunk_size = 0}), UsageError);
  CHECK_THROWS_AS((void)pool.map<std::string>("test_echo", items), ValueError);
}

TEST_CASE("a map throws the failure of the first item that failed, and the pool goes on") {
  Pool pool(2);
  for (const std::size_t chunk : {1, 3, 1000}) {
    CHECK_THROWS_WITH_AS((void)pool.map<int>("test_raise_at", numbers_to(1000), {.chunk_size = chunk}),
                         doctest::Contains("raised std::out_of_range: 10"), CallError);
    CHECK_THROWS_WITH_AS((void)pool.map<int>("test_die_at", numbers_to(100), {.chunk_size = chunk}),
                         doctest::Contains("killed by SIGKILL"), WorkerDied);
  }
  std::vector<std::string> texts(10, "text");
  texts[8] = "\xff";
  CHECK_THROWS_WITH_AS((void)pool.map("test_echo", texts, {.chunk_size = 3}),
                       doctest::Contains("item 8 of the map of test_echo: cannot send a string that is not UTF-8"),
                       Unsendable);
  CHECK(pool.map<int>("test_echo", numbers_to(100)) == numbers_to(100));
  CHECK(pool.status().running == 0);
}

TEST_CASE("status counts each item of a map as a task, and no cancelled task") {
  const TestFolder folder;
  Pool pool(1);
  CHECK(pool.map<int>("test_echo", numbers_to(100), {.chunk_size = 7}) == numbers_to(100));
  CHECK(pool.status().done == 100);
  CHECK_THROWS_AS((void)pool.map<int>("test_raise_at", numbers_to(12), {.chunk_size = 12}), CallError);
  CHECK(pool.status().done == 110);
  CHECK(pool.status().failed == 2);
  auto cancelled = begin_waiting(pool, folder, "never");
  CHECK(cancelled.cancel());
  CHECK_THROWS_AS(cancelled.get(), Cancelled);
  CHECK(pool.status().done == 110);
  CHECK(pool.status().failed == 2);
}

TEST_CASE("if a worker dies of one item of a map, the other items have results") {
  const TestFolder folder;
  Pool pool(2);
  // The item that dies does so once: alone, it is tried again.
  const std::vector<std::string> files(20, folder.file("died"));
  const std::vector<Value> results = pool.map("test_die_unless", files, {.chunk_size = 5});
  CHECK(results == std::vector<Value>(20, Value(true)));
}

TEST_CASE("a map that takes too long is cancelled, and its workers are replaced") {
  const TestFolder folder;
  Pool pool(2);
  const std::vector<std::string> items(10, folder.file("never"));
  CHECK_THROWS_WITH_AS((void)pool.map("test_wait_for", items, {.timeout_s = 0.05}),
                       doctest::Contains("the map of test_wait_for is not done after 0.05 s"), TimeoutError);
  CHECK(pool.map<int>("test_echo", numbers_to(100)) == numbers_to(100));
  CHECK(pool.status().queued == 0);
}

// Clusters

TEST_CASE("a pool on a cluster") {
  const TestFolder folder;
  Cluster cluster({local(2), local(1)});
  PoolOptions options;
  options.node_resources = {{cluster.node_names()[1], {{"licence", 1}}}};
  Pool pool(cluster, options);
  CHECK(pool.map<int>("test_echo", numbers_to(500)) == numbers_to(500));
  REQUIRE(pool.workers().size() == 3);
  std::set<std::int64_t> pids;
  for (const PoolWorker& worker : pool.workers()) {
    pids.insert(worker.pid);
    if (worker.node != cluster.node_names()[1]) continue;
    CHECK(pool.with({.node = worker.node}).submit<std::int64_t>("test_pid").get() == worker.pid);
    CHECK(pool.with({.resources = {{"licence", 1}}}).submit<std::int64_t>("test_pid").get() == worker.pid);
  }
  CHECK(pids.contains(pool.submit<std::int64_t>("test_pid").get()));
  const std::vector<Array> large(6, Array::zeros<double>({100'000}));
  CHECK(pool.map<Array>("test_echo", large, {.chunk_size = 1}) == large);
  CHECK_THROWS_AS((void)pool.with({.num_cpus = 3}), UsageError);
  CHECK(pool.with({.retries = 1}).submit<int>("test_die_first", folder.file("once"), 1).get() == 2);
  CHECK(pool.map<int>("test_echo", numbers_to(500)) == numbers_to(500));
  // The tasks may be done before the worker that died has been replaced.
  wait_until("a third worker", [&] { return pool.status().workers == 3; });
}

TEST_CASE("a node whose server dies is launched again") {
  const TestFolder folder;
  Cluster cluster({local(1)});
  Pool pool(cluster);
  const auto before = pool.submit<std::int64_t>("test_pid").get();
  const auto runs = begin_waiting(pool.with({.retries = 1}), folder, "runs");
  REQUIRE(kill(static_cast<pid_t>(cluster.servers().at(0).pid), SIGKILL) == 0);
  folder.touch("runs.go");
  runs.get();
  // Its worker may have finished it, and more, before it noticed that its server is gone.
  wait_until("a task in the new server's worker",
             [&] { return pool.with({.retries = 5}).submit<std::int64_t>("test_pid").get() != before; });
  CHECK(pool.status().workers == 1);
}

TEST_CASE("a cluster's nodes must have a function that answers calls") {
  Cluster cluster({local(1)});
  PoolOptions options;
  options.work_fn = "nothing";
  CHECK_THROWS_WITH_AS(Pool(cluster, options), doctest::Contains("has no work function \"nothing\""), ClusterError);
}

TEST_CASE("a task that wants more memory than it may have" * doctest::skip(sanitized)) {
  Pool pool(1);
  const auto limited = pool.with({.memory_bytes = 64 << 20});
  CHECK(limited.submit<std::int64_t>("test_allocate", 16 << 20).get() == 16 << 20);
  const auto future = limited.submit<std::int64_t>("test_allocate", 256 << 20);
  CHECK_THROWS_WITH_AS((void)future.get(),
                       doctest::Contains("(memory_bytes=67108864). Give it less at a time, or raise memory_bytes"),
                       TaskOutOfMemory);
  CHECK(limited.map<int>("test_echo", numbers_to(20), {.chunk_size = 7}) == numbers_to(20));
  CHECK_THROWS_AS((void)limited.map<int>("test_allocate", std::vector<int>{1, 256 << 20}), TaskOutOfMemory);
  CHECK(pool.submit<std::int64_t>("test_allocate", 256 << 20).get() == 256 << 20);
  CHECK_THROWS_AS((void)pool.with({.memory_bytes = 0}), UsageError);
}

TEST_CASE("a time-out must be above 0, and limits each call by itself, whatever the chunks are") {
  Pool pool(1);
  CHECK_THROWS_WITH_AS((void)pool.with({.timeout_s = 0}), doctest::Contains("above 0, not 0"), UsageError);
  const std::vector<int> items = numbers_to(20);
  const auto patient = pool.with({.timeout_s = 60});
  CHECK(patient.map<int>("test_echo", items, {.chunk_size = 7}) == items);
}

}  // namespace miniray
