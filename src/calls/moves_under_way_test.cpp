// Workers and callers that are moved, swapped or destroyed while calls are under way, also by the callbacks of calls.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "miniray/calls.hpp"
#include "miniray/cluster.hpp"
#include "miniray/training_group.hpp"
#include "miniray/worker_server.hpp"
#include "tests/local_node.hpp"

namespace miniray {
namespace {

constexpr auto under_way_half = [](double x) { return x / 2; };

}  // namespace

TEST_CASE("many callers and futures follow a vector of workers that grows, shrinks and is sorted anew") {
  std::vector<Worker> workers;
  std::vector<Caller> callers;
  std::vector<CallFuture<double>> futures;
  for (int i = 0; i < 6; ++i) {
    workers.emplace_back(serve_calls);
    callers.emplace_back(workers.back());
    for (std::size_t j = 0; j < callers.size(); ++j) futures.push_back(callers[j].call_async(under_way_half, 2 * j));
  }
  std::swap(workers[0], workers[5]);
  std::swap(callers[1], callers[2]);
  workers.shrink_to_fit();
  for (const auto& future : futures) CHECK(future.get() == std::round(future.get()));
  CHECK(&callers[0].worker() == &workers[5]);
  CHECK(callers[0].call(under_way_half, 8) == 4);
  workers.erase(workers.begin() + 1);
  CHECK_THROWS_WITH_AS((void)callers[2].call(under_way_half, 1),
                       doctest::Contains("the worker of this Caller has ended"), UsageError);
  CHECK(callers[5].call(under_way_half, 8) == 4);
  Worker& same = workers[0];
  workers[0] = std::move(same);
  CHECK(workers[0].valid());
}

TEST_CASE("a callback may move the worker, and make the vector of workers grow") {
  std::vector<Worker> workers;
  workers.emplace_back(serve_calls);
  Caller caller(workers[0]);
  int told = 0;
  std::vector<CallFuture<double>> futures;
  for (int i = 0; i < 4; ++i) {
    futures.push_back(caller.call_async(under_way_half, i));
    futures.back().on_done([&](const auto&) {
      ++told;
      workers.emplace_back([](Handle&) {});
    });
  }
  CHECK(futures[3].get() == 1.5);
  CHECK(told == 4);
  CHECK(&caller.worker() == &workers[0]);
}

TEST_CASE("a callback may destroy the Caller, or the worker, of its call") {
  for (const bool worker_too : {false, true}) {
    CAPTURE(worker_too);
    auto worker = std::make_unique<Worker>(serve_calls);
    auto caller = std::make_unique<Caller>(*worker);
    const auto first = caller->call_async(under_way_half, 2);
    const auto second = caller->call_async(under_way_half, 4);
    first.on_done([&](const auto&) {
      if (worker_too)
        worker.reset();
      else
        caller.reset();
    });
    CHECK(first.get() == 1);
    if (worker_too)
      CHECK_THROWS_AS((void)second.get(), UsageError);
    else
      CHECK_THROWS_AS((void)second.get(), Cancelled);
  }
}

TEST_CASE("a callback may destroy the Caller whose take_replies() runs it") {
  Worker worker(serve_calls);
  auto caller = std::make_unique<Caller>(worker);
  Caller* const taking = caller.get();
  const auto first = caller->call_async(under_way_half, 2);
  first.on_done([&](const auto&) { caller.reset(); });
  while (!first.wait(0) && taking->take_replies() > 0) {
  }
  CHECK(caller == nullptr);
  CHECK(first.get() == 1);
}

TEST_CASE("a worker that was moved from is refused where a worker is expected") {
  Worker first([](Handle& handle) { (void)handle.recv(); });
  Worker second = std::move(first);
  const char* const text = "this Worker was moved from";
  CHECK_THROWS_WITH_AS((void)wait_any(std::span(&first, 1), 0), doctest::Contains(text), UsageError);
  Worker* const pointer = &first;
  CHECK_NOTHROW(close_all(std::span(&pointer, 1)));
  WorkerServer server("127.0.0.1", 0, serve_calls, {.key = std::string(64, 'a')});
  const WorkerServer moved = std::move(server);
  CHECK_THROWS_WITH_AS((void)server.port(), doctest::Contains("this WorkerServer was moved from"), UsageError);
  CHECK(moved.port() > 0);
}

TEST_CASE("a cluster whose workers were moved out goes on, and so does a group that was moved") {
  Cluster cluster({local(2)});
  const std::span<Worker> workers = cluster.start("test_rank");
  TrainingGroup group(cluster, workers, {.progress = false});
  TrainingGroup moved = std::move(group);
  CHECK_THROWS_WITH_AS(group.broadcast(Value(1)), doctest::Contains("this TrainingGroup was moved from"), UsageError);
  CHECK_THROWS_WITH_AS((void)group.gather(), doctest::Contains("this TrainingGroup was moved from"), UsageError);
  moved.broadcast({{"echo", 1}});
  CHECK(moved.gather() == std::vector<Value>{0, 1});
  Worker own = std::move(workers[0]);
  CHECK_THROWS_WITH_AS(moved.broadcast({{"echo", 1}}), doctest::Contains("this Worker was moved from"), UsageError);
  CHECK_THROWS_WITH_AS((void)cluster.node_of(workers[0]), doctest::Contains("this Worker was moved from"), UsageError);
  CHECK_THROWS_WITH_AS((void)cluster.replace(workers[0]), doctest::Contains("this Worker was moved from"), UsageError);
  CHECK(cluster.node_of(own) == 0);
}

TEST_CASE("whatever on_interrupt throws, the destructor of a cluster throws nothing") {
  bool thrown = false, armed = false;
  {
    ClusterOptions options;
    options.worker.on_interrupt = [&] {
      if (!armed) return;
      thrown = true;
      throw std::runtime_error("an interrupt");
    };
    Cluster cluster({local(1)}, options);
    (void)cluster.start("test_spin");
    armed = true;
  }
  CHECK(thrown);
}

}  // namespace miniray
