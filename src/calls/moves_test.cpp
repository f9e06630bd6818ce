// Workers, callers, channels and clusters that are moved, and what is said to those who use the old one.
#include <doctest/doctest.h>
#include <signal.h>

#include <stdexcept>
#include <vector>

#include "miniray/calls.hpp"
#include "miniray/cluster.hpp"
#include "tests/local_node.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

Worker start_calls() {
  registry().add("moves_half", [](double x) { return x / 2; });
  return Worker(serve_calls);
}

void serve_for_ever(Handle&) {
  signal(SIGINT, SIG_IGN);
  for (;;) pause();
}

}  // namespace

TEST_CASE("a worker that was moved from says so in every call, and can be assigned to") {
  Worker first(serve_calls);
  const pid_t pid = first.pid();
  Worker second = std::move(first);
  CHECK(second.pid() == pid);
  CHECK_FALSE(first.valid());
  const auto says = [](auto call) {
    CHECK_THROWS_WITH_AS(call(), "this Worker was moved from: use the one that it was moved to", UsageError);
  };
  says([&] { first.send(1); });
  says([&] { (void)first.recv(); });
  says([&] { (void)first.wait(); });
  says([&] { (void)first.is_alive(); });
  says([&] { first.kill(); });
  says([&] { (void)first.stack(); });
  says([&] { first.end(); });
  says([&] { first.close(); });
  says([&] { (void)first.pid(); });
  says([&] { (void)first.name(); });
  says([&] { (void)first.channel(); });
  says([&] { (void)Caller(first); });
  first = std::move(second);
  CHECK(first.pid() == pid);
}

TEST_CASE("a Caller follows its worker, also when a vector of workers grows") {
  std::vector<Worker> workers;
  workers.push_back(start_calls());
  Caller caller(workers.front());
  const auto under_way = caller.call_async<double>("moves_half", 3);
  while (workers.size() < 9) workers.emplace_back([](Handle&) {});
  CHECK(under_way.get() == 1.5);
  CHECK(caller.call<double>("moves_half", 5) == 2.5);
  CHECK(&caller.worker() == &workers.front());
}

TEST_CASE("a Caller whose worker is gone says so, and its calls fail") {
  auto worker = std::make_unique<Worker>(start_calls());
  Caller caller(*worker);
  const auto under_way = caller.call_async<double>("moves_half", 3);
  const auto asked = caller.call_async<double>("moves_half", 3);
  worker.reset();
  const char* const text = "the worker of this Caller has ended";
  CHECK(under_way.ready());
  CHECK_THROWS_WITH_AS((void)under_way.get(), doctest::Contains(text), UsageError);
  CHECK_THROWS_WITH_AS((void)asked.get(), doctest::Contains(text), UsageError);
  CHECK_THROWS_WITH_AS((void)caller.call<double>("moves_half", 3), doctest::Contains(text), UsageError);
  CHECK_THROWS_WITH_AS((void)caller.worker(), doctest::Contains(text), UsageError);
  CHECK(caller.take_replies() == 0);
}

TEST_CASE("callers and channels that were moved from say so") {
  Worker worker = start_calls();
  Caller first(worker);
  Caller second = std::move(first);
  CHECK_THROWS_WITH_AS((void)first.call("moves_half", 1), doctest::Contains("this Caller was moved from"), UsageError);
  CHECK(second.call<double>("moves_half", 1) == 0.5);
  auto [here, there] = Channel::pair();
  const Channel elsewhere = std::move(here);
  CHECK_THROWS_WITH_AS(here.send(Value(1)), doctest::Contains("this Channel was moved from"), UsageError);
}

TEST_CASE("a Handle that was moved from says so, and the other one goes on") {
  Worker worker([](Handle& handle) {
    Handle moved = std::move(handle);
    try {
      handle.send(1);
    } catch (const UsageError& error) {
      moved.send(error.what());
    }
    for (;;) moved.send(moved.recv());
  });
  CHECK(worker.recv<std::string>().find("this Channel was moved from") == 0);
  worker.send(1);
  CHECK(worker.recv() == Value(1));
  worker.end();
  CHECK(worker.wait() == 0);
}

TEST_CASE("a worker that was moved out of a cluster belongs to its new owner") {
  std::vector<Worker> own;
  {
    Cluster cluster({local(2)});
    const std::span<Worker> workers = cluster.start("test_echo");
    own.push_back(std::move(workers[0]));
    cluster.broadcast(7);
    CHECK(cluster.gather() == std::vector<Value>{7});
    own[0].send(8);
    CHECK(own[0].recv() == Value(8));
    Cluster other = std::move(cluster);
    CHECK_THROWS_WITH_AS(cluster.broadcast(1), doctest::Contains("this Cluster was moved from"), UsageError);
    CHECK_THROWS_WITH_AS((void)workers[0].recv(), doctest::Contains("this Worker was moved from"), UsageError);
  }
}

TEST_CASE("whatever on_interrupt throws, the destructor of a busy worker ends it and throws nothing") {
  for (const bool standard : {true, false}) {
    CAPTURE(standard);
    bool thrown = false;
    pid_t pid = 0;
    {
      WorkerOptions options;
      options.on_interrupt = [&] {
        if (pid == 0) return;
        thrown = true;
        standard ? throw std::runtime_error("an interrupt") : throw 42;
      };
      const Worker worker(serve_for_ever, options);
      pid = worker.pid();
    }
    CHECK(thrown);
    CHECK(kill(pid, 0) == -1);
  }
}

}  // namespace miniray
