#include "miniray/group_run.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/local_node.hpp"

// "test_rank" is in tests/main.cpp: it answers {"echo": x} with its rank, and of {"die": rank} that rank dies.
namespace miniray {
namespace {

GroupRunOptions quick_group(int max_restarts, const std::shared_ptr<EventLog>& events = {}) {
  GroupRunOptions options;
  options.policy = {.max_restarts = max_restarts, .window_s = 1000, .backoff_s = 0};
  options.group.progress = false;
  options.events = events;
  return options;
}

}  // namespace

TEST_CASE("a rank dies: all start again, with another rendezvous, and the run finishes") {
  Cluster cluster({local(2), local(1)});
  const auto events = std::make_shared<EventLog>();
  std::vector<int> ports;
  std::vector<pid_t> pids;
  int checkpoint = 0;
  run_group(
      cluster, "test_rank",
      [&](TrainingGroup& group, int attempt) {
        CHECK(attempt == static_cast<int>(ports.size()));
        ports.push_back(group.configs()[0].master_port);
        for (Worker* worker : group.workers()) pids.push_back(worker->pid());
        for (; checkpoint < 5; ++checkpoint) {
          if (checkpoint == 3 && attempt < 2) group.broadcast({{"die", attempt}});
          group.broadcast({{"echo", 1}});
          const std::vector<Value> answers = group.gather();
          CHECK(answers == std::vector<Value>{Value(0), Value(1), Value(2)});
        }
      },
      quick_group(2, events));
  CHECK(checkpoint == 5);
  REQUIRE(ports.size() == 3);
  CHECK(ports[0] != ports[1]);
  CHECK(ports[1] != ports[2]);
  for (const pid_t pid : pids) CHECK(kill(pid, 0) != 0);
  CHECK(events->events("group_restarted").size() == 2);
  CHECK(events->events("group_failed").at(1).text.find("rank 1 of 3 has failed: ") == 0);
  CHECK(events->events("group_finished").size() == 1);
}

TEST_CASE("too many deaths: the last one's error, and nobody is left") {
  Cluster cluster({local(2)});
  int attempts = 0;
  const auto drive = [&](TrainingGroup& group, int) {
    ++attempts;
    group.broadcast({{"die", 1}});
    (void)group.gather();
  };
  try {
    run_group(cluster, "test_rank", drive, quick_group(1));
    FAIL("it returned");
  } catch (const GroupError& error) {
    const std::string text = error.what();
    CHECK(text.starts_with("rank 1 of 2 has failed: "));
    CHECK(text.ends_with("\n\nThe policy allows no more: 1 restart within 1000 s (max_restarts, window_s)"));
    CHECK(error.rank() == 1);
  }
  CHECK(attempts == 2);
}

TEST_CASE("what is no death is not tried again") {
  Cluster cluster({local(1)});
  int attempts = 0;
  const auto drive = [&](TrainingGroup&, int) {
    ++attempts;
    throw std::runtime_error("a bug in the driver");
  };
  CHECK_THROWS_WITH_AS(run_group(cluster, "test_rank", drive, quick_group(3)), "a bug in the driver",
                       std::runtime_error);
  CHECK(attempts == 1);
  CHECK_THROWS_AS(run_group(cluster, "test_echo", drive, quick_group(3)), GroupError);  // never a group
  CHECK(attempts == 1);
}

TEST_CASE("a server dies: it is launched again, or its ranks go to the node that is left") {
  char folder[] = "/tmp/miniray-test-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  NodeConfig node = local(2);
  node.workdir = folder;
  Cluster cluster({node, local(1)});
  cluster.launch_servers("test_rank");
  const auto events = std::make_shared<EventLog>();
  GroupRunOptions options = quick_group(3, events);
  options.policy.other_nodes = true;
  std::vector<std::vector<std::size_t>> places;
  run_group(
      cluster, "test_rank",
      [&](TrainingGroup& group, int attempt) {
        std::vector<std::size_t>& places_now = places.emplace_back();
        for (Worker* worker : group.workers()) places_now.push_back(cluster.node_of(*worker));
        if (attempt == 1) REQUIRE(rmdir(folder) == 0);
        if (attempt < 2) kill(static_cast<pid_t>(cluster.servers().at(0).pid), SIGKILL);
        if (attempt == 2) {
          REQUIRE(mkdir(folder, 0700) == 0);
          group.broadcast({{"die", 0}});
        }
        do {  // until it is noticed
          group.broadcast({{"echo", 1}});
          (void)group.gather();
        } while (attempt < 3);
      },
      options);
  CHECK(places == std::vector<std::vector<std::size_t>>{{0, 0, 1}, {0, 0, 1}, {1, 1, 1}, {0, 0, 1}});
  CHECK(events->events("ranks_moved").size() == 1);
  CHECK(events->events("node_back").size() == 2);
  cluster.stop();
  rmdir(folder);
}

}  // namespace miniray
