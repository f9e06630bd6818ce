#include "miniray/training_group.hpp"

#include <doctest/doctest.h>

#include "miniray/error.hpp"
#include "tests/local_node.hpp"

// tests/main.cpp has the work function "test_rank": it answers {"echo": ...} with its rank; {"die": rank} and
// {"raise": rank} make one rank die or throw.
namespace miniray {

TEST_CASE("a group has ranks, a master and a port of its own") {
  Cluster cluster({local(2), local(1)});
  TrainingGroup group(cluster, cluster.start("test_rank"));
  REQUIRE(group.size() == 3);
  CHECK(group.configs()[0].master_addr == "127.0.0.1");
  CHECK(group.configs()[1].local_rank == 1);
  CHECK(group.configs()[2].local_rank == 0);
  group.broadcast({{"echo", 5}});
  CHECK(group.gather() == std::vector<Value>{Value(0), Value(1), Value(2)});
  TrainingGroup other(cluster, cluster.start("test_rank", {.num_workers = 1}));
  CHECK(other.size() == 2);
  CHECK(other.configs()[0].master_port != group.configs()[0].master_port);
  const std::vector<Value> messages{{{"echo", 1}}, {{"echo", 2}}};
  other.scatter(messages);
  CHECK(other.gather().size() == 2);
  CHECK_THROWS_AS(other.scatter(std::span(messages).first(1)), UsageError);
}

TEST_CASE("a rank that dies is named, and the other ranks are killed") {
  Cluster cluster({local(4)});
  TrainingGroup group(cluster, cluster.start("test_rank"));
  group.broadcast({{"die", 2}});  // the other ranks wait forever
  try {
    (void)group.gather();
    FAIL("it returned");
  } catch (const GroupError& error) {
    CHECK(error.rank() == 2);
    CHECK(error.failures().size() == 1);
    const std::string text = error.what();
    CHECK(text.find("rank 2 of 4 has failed: worker ") == 0);
    CHECK(text.find("was killed by SIGKILL") != std::string::npos);
  }
  for (Worker* worker : group.workers()) CHECK(worker->wait(10.0) == -9);
}

TEST_CASE("a rank that throws is the cause, not the ranks that fail after it") {
  Cluster cluster({local(3)});
  TrainingGroup group(cluster, cluster.start("test_rank"));
  group.broadcast({{"raise", 1}});  // the other ranks throw that a peer closed the connection
  try {
    (void)group.gather();
    FAIL("it returned");
  } catch (const GroupError& error) {
    CHECK(error.rank() == 1);
    CHECK(error.failures().size() == 3);
    CHECK(std::string(error.what()).find("Then these ranks failed too:\n  rank ") != std::string::npos);
  }
}

TEST_CASE("a time-out says what each rank is doing, and the group goes on") {
  Cluster cluster({local(2)});
  TrainingGroup group(cluster, cluster.start("test_rank"));
  group.workers()[0]->send({{"echo", 1}});
  try {
    (void)group.gather({{}, 0.1});
    FAIL("it returned");
  } catch (const TimeoutError& error) {
    const std::string text = error.what();
    CHECK(text.find("1 of 2 ranks have sent no message") == 0);
    CHECK(text.find("rank 1 of 2 (worker ") != std::string::npos);
    CHECK(text.find(", after 0.") != std::string::npos);
    CHECK(text.find("test_rank") != std::string::npos);  // its C++ stack
  }
  group.workers()[1]->send({{"echo", 1}});
  CHECK(group.gather() == std::vector<Value>{Value(0), Value(1)});
}

TEST_CASE("a group that does not become ready throws, and says why") {
  Cluster cluster({local(2)});
  const std::span<Worker> workers = cluster.start("test_rank_not_ready");
  try {
    const TrainingGroup group(cluster, workers, {.timeout_s = 0.2, .progress = false});
    FAIL("it became ready");
  } catch (const TimeoutError& error) {
    CHECK(std::string(error.what()).find("1 of 2 ranks are not ready after 0.2 s.\n  rank 1 of 2") == 0);
  }
  const std::span<Worker> echoes = cluster.start("test_echo");
  CHECK_THROWS_AS(TrainingGroup(cluster, echoes, {.progress = false}), GroupError);
  CHECK_THROWS_AS(TrainingGroup(cluster, std::vector<Worker*>{}), UsageError);
  CHECK_THROWS_AS(TrainingGroup(cluster, std::vector<Worker*>{&workers[0], &workers[0]}), UsageError);
  Worker stranger([](Handle& handle) { (void)handle.recv(); });
  CHECK_THROWS_AS(TrainingGroup(cluster, std::vector<Worker*>{&stranger}), UsageError);
  CHECK_THROWS_AS(TrainingGroup(cluster, workers, {.master_port = 0}), UsageError);
}

}  // namespace miniray
