#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>

#include "miniray/calls.hpp"
#include "miniray/supervised_worker.hpp"
#include "tests/local_node.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

// Adds up what it is sent; "die" and "throw" are what they say.
Worker start_adder() {
  return Worker([](Handle& handle) {
    for (std::int64_t sum = 0;;) {
      const Value order = handle.recv();
      if (order == Value("die")) kill(getpid(), SIGKILL);
      if (order == Value("throw")) throw std::runtime_error("a bug");
      handle.send(sum += order.integer());
    }
  });
}

RestartPolicy quick(int max_restarts) { return {.max_restarts = max_restarts, .window_s = 1000, .backoff_s = 0}; }

std::vector<std::string> kinds(const EventLog& log) {
  std::vector<std::string> all;
  for (const Event& event : log.events()) all.push_back(event.kind);
  return all;
}

}  // namespace

TEST_CASE("a worker that dies is replaced, gets its state again, and says so once") {
  SupervisedWorker worker(start_adder, {.policy = quick(1), .on_restart = [](Worker& fresh) {
                                          fresh.send(100);
                                          CHECK(fresh.recv() == Value(100));
                                        }});
  worker.send(1);
  CHECK(worker.recv() == Value(1));
  worker.send("die");
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("has taken its place (restart 1 of 1 within 1000 s)"),
                       WorkerRestarted);
  worker.send(1);
  CHECK(worker.recv() == Value(101));
  CHECK(worker.restarts() == 1);
  worker.send("die");
  try {
    (void)worker.recv();
    FAIL("it returned");
  } catch (const WorkerRestarted&) {
    FAIL("it was restarted once too often");
  } catch (const WorkerDied& died) {
    CHECK(std::string(died.what()).find("SIGKILL") != std::string::npos);
    CHECK(std::string(died.what()).find("The policy allows no more: 1 restart within 1000 s") != std::string::npos);
  }
  CHECK(kinds(worker.events()) == std::vector<std::string>{"worker_started", "worker_died", "worker_restarted",
                                                           "worker_died", "restart_refused"});
}

TEST_CASE("a work function that throws is told as it is, and the worker is new") {
  SupervisedWorker worker(start_adder, {.policy = quick(1)});
  worker.send("throw");
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("a bug"), WorkerError);
  worker.send(7);
  CHECK(worker.recv() == Value(7));
}

TEST_CASE("whatever on_interrupt throws, the destructor of a busy supervised worker ends it and throws nothing") {
  for (const bool standard : {true, false}) {
    CAPTURE(standard);
    bool thrown = false;
    pid_t pid = 0;
    {
      const auto on_interrupt = [&] {
        if (pid == 0) return;
        thrown = true;
        standard ? throw std::runtime_error("an interrupt") : throw 42;
      };
      const auto work = [](Handle&) {
        signal(SIGINT, SIG_IGN);
        for (;;) pause();
      };
      SupervisedWorker worker([&] { return Worker(work, {.on_interrupt = on_interrupt}); },
                              {.on_interrupt = on_interrupt});
      pid = worker.worker().pid();
    }
    CHECK(thrown);
    CHECK(kill(pid, 0) == -1);
  }
}

TEST_CASE("what cannot be replaced is tried as often as the policy allows") {
  int starts = 0;
  const auto start = [&]() -> Worker {
    if (++starts > 1) throw Refused("nobody listens");
    return start_adder();
  };
  SupervisedWorker worker(start, {.policy = quick(3)});
  worker.worker().kill();
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("The last time it failed: nobody listens"), WorkerDied);
  CHECK(starts == 4);
}

TEST_CASE("a new process that ends in on_restart is a failed attempt") {
  int attempts = 0;
  SupervisedWorker worker(start_adder, {.policy = quick(3), .on_restart = [&](Worker& fresh) {
                                          ++attempts;
                                          if (attempts == 1) fresh.send("die");
                                          if (attempts == 2) fresh.send("throw");
                                          if (attempts < 3) (void)fresh.recv();
                                        }});
  worker.worker().kill();
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("restart 3 of 3"), WorkerRestarted);
  CHECK(attempts == 3);
  worker.send(1);
  CHECK(worker.recv() == Value(1));
  CHECK(kinds(worker.events()) == std::vector<std::string>{"worker_started", "worker_died", "worker_restarted",
                                                           "restart_failed", "worker_restarted", "restart_failed",
                                                           "worker_restarted"});
}

TEST_CASE("what else on_restart throws is the caller's, and the next call recovers again") {
  int attempts = 0;
  SupervisedWorker worker(start_adder, {.policy = quick(3), .on_restart = [&](Worker&) {
                                          if (++attempts == 1) throw std::runtime_error("no checkpoint");
                                          if (attempts == 2) throw Refused("nobody listens");
                                        }});
  worker.worker().kill();
  CHECK_THROWS_WITH_AS((void)worker.recv(), "no checkpoint", std::runtime_error);
  CHECK(worker.worker().wait() == -SIGKILL);  // it lacks its state
  CHECK_THROWS_AS((void)worker.recv(), Refused);
  CHECK_THROWS_AS((void)worker.recv(), WorkerRestarted);
  worker.send(1);
  CHECK(worker.recv() == Value(1));
}

TEST_CASE("the steps of a recovery, for a caller that pauses in its own way") {
  auto supervision = std::make_shared<Supervision>([](Worker&) { return start_adder(); },
                                                   SupervisionOptions{.policy = {.max_restarts = 1, .backoff_s = 7}});
  Worker worker = start_adder();
  Supervision::begin(worker, supervision);
  worker.kill();
  (void)worker.wait();
  CHECK_FALSE(supervision->pending());
  CHECK_THROWS_AS((void)worker.try_receive(), WorkerDied);  // never waits, so it does not recover
  CHECK(supervision->pending());
  CHECK(supervision->pause_before_attempt(worker) == 7.0);
  CHECK(supervision->pause_before_attempt(worker) == 7.0);  // another caller, before the attempt: it is the same one
  CHECK(supervision->attempt(worker));
  CHECK(supervision->attempt(worker));  // there is nothing left to do
  CHECK(supervision->restarts() == 1);
  CHECK_THROWS_AS(supervision->tell(worker), WorkerRestarted);
  CHECK_FALSE(supervision->pending());
  worker.send(2);
  CHECK(worker.recv() == Value(2));
}

TEST_CASE("calls on a supervised worker: those of the dead process fail, the next are answered") {
  registry().add("test_half", [](double x) {
    if (x < 0) kill(getpid(), SIGKILL);
    return x / 2;
  });
  SupervisedWorker worker([] { return Worker(serve_calls); }, {.policy = quick(2)});
  Caller caller(worker.worker());
  CHECK(caller.call<double>("test_half", 3) == 1.5);
  const auto fatal = caller.call_async<double>("test_half", -1);
  const auto behind = caller.call_async<double>("test_half", 5);
  CHECK_THROWS_AS((void)fatal.get(), WorkerRestarted);
  CHECK_THROWS_AS((void)behind.get(), WorkerRestarted);
  CHECK(caller.call<double>("test_half", 3) == 1.5);
  worker.worker().kill();
  (void)worker.worker().wait();
  const auto noticed_by_the_next = [&] {
    const auto lost = caller.call_async<double>("test_half", 7);
    for (int i = 0; i < 1000; ++i) (void)caller.call_async<double>("test_half", 9);
    (void)lost.get();
  };
  CHECK_THROWS_AS(noticed_by_the_next(), WorkerRestarted);
  CHECK(caller.call<double>("test_half", 3) == 1.5);
}

TEST_CASE("calls under way fail with WorkerRestarted, whichever call finds the death") {
  registry().add("test_die", [] { (void)raise(SIGKILL); });
  SupervisedWorker worker([] { return Worker(serve_calls); }, {.policy = quick(2)});
  Caller caller(worker.worker());
  const auto found_by_recv = caller.call_async<void>("test_die");
  CHECK_THROWS_AS((void)worker.recv(), WorkerRestarted);
  CHECK_THROWS_AS(found_by_recv.get(), WorkerRestarted);
  const auto found_by_ready = caller.call_async<void>("test_die");
  wait_until("the end of the worker", [&] { return found_by_ready.ready(); });
  CHECK_THROWS_AS(found_by_ready.get(), WorkerRestarted);
  CHECK(worker.restarts() == 2);
}

TEST_CASE("what is done with many workers at once tells of a death, and the next call recovers") {
  Cluster cluster({local(2)});
  cluster.launch_servers("test_echo");
  std::vector<SupervisedWorker> workers =
      supervise(cluster, cluster.connect_to_servers("test_echo"), {.policy = quick(3)});
  const std::vector<Worker*> both{&workers[0].worker(), &workers[1].worker()};
  workers[1].worker().kill();
  (void)workers[1].worker().wait();
  CHECK_THROWS_AS((void)Cluster::gather(std::span(both).last(1), {}), WorkerDied);
  CHECK(workers[1].restarts() == 0);
  CHECK_THROWS_AS((void)workers[1].recv(), WorkerRestarted);
  cluster.broadcast(both, encode(5));
  CHECK(Cluster::gather(both, {}).size() == 2);
}

TEST_CASE("workers of a cluster, whose server may die too") {
  Cluster cluster({local(1), local(2)});
  cluster.launch_servers("test_echo");
  std::vector<SupervisedWorker> workers =
      supervise(cluster, cluster.connect_to_servers("test_echo"), {.policy = quick(3)});
  REQUIRE(workers.size() == 3);
  workers[1].worker().kill();
  CHECK_THROWS_AS((void)workers[1].recv(), WorkerRestarted);
  kill(static_cast<pid_t>(cluster.servers().at(1).pid), SIGKILL);
  CHECK_THROWS_AS((void)workers[1].recv(), WorkerRestarted);
  CHECK_THROWS_AS((void)workers[2].recv(), WorkerRestarted);
  for (SupervisedWorker& worker : workers) {
    worker.send(5);
    CHECK(worker.recv() == Value(5));
  }
  CHECK(workers[1].restarts() == 2);
  CHECK(workers[2].restarts() == 1);
  CHECK(workers[0].events().events("node_back").size() == 1);  // the second found it there
  CHECK(workers[0].events().events("node_back").at(0).node == "localhost#1");
}

TEST_CASE("a node that is gone for good: another, if the policy allows it") {
  char folder[] = "/tmp/miniray-test-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  NodeConfig node = local(1);
  node.workdir = folder;
  Cluster cluster({local(1), node});
  cluster.launch_servers("test_echo");
  REQUIRE(rmdir(folder) == 0);
  const auto lose_the_second_of = [&](bool other_nodes) {
    SupervisionOptions options{.policy = quick(1)};
    options.policy.other_nodes = other_nodes;
    return options;
  };
  std::vector<SupervisedWorker> mobile =
      supervise(cluster, cluster.connect_to_servers("test_echo"), lose_the_second_of(true));
  std::vector<SupervisedWorker> bound =
      supervise(cluster, cluster.connect_to_servers("test_echo"), lose_the_second_of(false));
  kill(static_cast<pid_t>(cluster.servers().at(1).pid), SIGKILL);
  CHECK_THROWS_AS((void)mobile[1].recv(), WorkerRestarted);
  CHECK(cluster.node_of(mobile[1].worker()) == 0);
  mobile[1].send(5);
  CHECK(mobile[1].recv() == Value(5));
  CHECK_THROWS_WITH_AS((void)bound[1].recv(), doctest::Contains("(workdir): No such file"), WorkerDied);
}

TEST_CASE("a supervised worker that was moved from says so") {
  SupervisedWorker first([] { return Worker([](Handle& handle) { handle.send(handle.recv()); }); });
  SupervisedWorker second = std::move(first);
  second.send(3);
  CHECK(second.recv() == Value(3));
  const char* const text = "was moved from";
  CHECK_THROWS_WITH_AS((void)first.restarts(), doctest::Contains(text), UsageError);
  CHECK_THROWS_WITH_AS((void)first.events(), doctest::Contains(text), UsageError);
  CHECK_THROWS_WITH_AS(first.send(1), doctest::Contains(text), UsageError);
  CHECK_THROWS_WITH_AS((void)first.recover(Error("why")), doctest::Contains(text), UsageError);
  first = std::move(second);
  CHECK(first.restarts() == 0);
}

}  // namespace miniray
