// Tests of clusters with local nodes: the servers and connections are those of remote nodes, but without ssh.
// tests/cluster_test.py has other hosts.
#include "miniray/cluster.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "cluster/replacement.hpp"
#include "miniray/miniray.hpp"
#include "tests/described_machine.hpp"
#include "tests/local_node.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

bool lives(pid_t pid) { return kill(pid, 0) == 0; }

}  // namespace

TEST_CASE("workers of several nodes, in order, and two sets side by side") {
  Cluster cluster({local(2), local(1)});
  const std::span<Worker> echoes = cluster.start("test_echo");
  const std::span<Worker> doublers = cluster.start("test_double");
  REQUIRE(echoes.size() == 3);
  REQUIRE(doublers.size() == 3);
  CHECK(cluster.servers().size() == 2);
  for (std::size_t i = 0; i < 3; ++i) {
    echoes[i].send(static_cast<int>(i));
    doublers[i].send(static_cast<int>(i));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(echoes[i].recv() == Value(static_cast<int>(i)));
    CHECK(doublers[i].recv() == Value(static_cast<int>(2 * i)));
  }
  CHECK(echoes[0].name().find("at localhost (localhost/0, test_echo)") != std::string::npos);
}

TEST_CASE("a cluster's connections are encrypted within the machine only if it was told so") {
  for (const std::optional<bool> told : {std::optional<bool>(), std::optional(false), std::optional(true)}) {
    Cluster cluster({local(1)}, {.encrypt = told});
    Worker& worker = cluster.start("test_echo")[0];
    cluster.broadcast({{"large", Array::zeros<double>({100'000})}});  // through a connection of its own
    CHECK(worker.recv()["large"].array<double>().size() == 100'000);
    CHECK(worker.channel().sealed() == told.value_or(false));
  }
}

TEST_CASE("a broadcast reaches every worker, and its large buffers each node once") {
  Cluster cluster({local(3), local(1)});
  (void)cluster.start("test_echo");
  const Array large = Array::zeros<double>({100'000});
  const Value message{{"small", Array::zeros<double>({10})}, {"large", large}, {"also", Array::zeros<float>({50'000})}};
  for (int round = 0; round < 3; ++round) {
    cluster.broadcast({{"before", round}});
    cluster.broadcast(message);
    for (const Value& answer : cluster.gather()) CHECK(answer["before"] == Value(round));
    for (const Value& answer : cluster.gather()) CHECK(answer == message);
  }
}

TEST_CASE("a gather that fails loses nothing") {
  Cluster cluster({local(2)});
  const std::span<Worker> workers = cluster.start("test_echo");
  workers[0].send("first");
  CHECK_THROWS_AS((void)cluster.gather({.timeout_s = 0.05}), TimeoutError);
  workers[1].send("second");
  CHECK(cluster.gather() == std::vector<Value>{Value("first"), Value("second")});
}

TEST_CASE("no process is left after the cluster's end") {
  pid_t worker = 0;
  std::int64_t server = 0;
  {
    Cluster cluster({local(1)});
    worker = cluster.start("test_spin")[0].pid();
    server = cluster.servers().at(0).pid;
    CHECK(lives(worker));
  }
  CHECK_FALSE(lives(worker));
  CHECK_FALSE(lives(static_cast<pid_t>(server)));
}

TEST_CASE("a cluster may be started again") {
  Cluster cluster({local(1)});
  for (int i = 0; i < 2; ++i) {
    cluster.start("test_echo")[0].send(i);
    CHECK(cluster.gather() == std::vector<Value>{Value(i)});
    cluster.stop();
    cluster.stop();
  }
}

TEST_CASE("every node that fails is named, with its cause") {
  std::vector<NodeConfig> nodes{local(1), local(1), local(1)};
  nodes[1].workdir = "/no/such/folder";
  nodes[2].base_port = 1;
  nodes[2].host = "127.0.0.1";
  Cluster holder({local(1)});
  holder.launch_servers();
  nodes[2].base_port = holder.servers().at(0).port;
  Cluster cluster(nodes);
  try {
    (void)cluster.start("test_echo");
    FAIL("it started");
  } catch (const ClusterError& error) {
    REQUIRE(error.failures().size() == 2);
    CHECK(error.failures()[0].node == "localhost#1");
    CHECK(error.failures()[0].why.find("/no/such/folder (workdir): No such file") != std::string::npos);
    CHECK(error.failures()[1].node == "127.0.0.1");
    CHECK(error.failures()[1].why.find("process " + std::to_string(holder.servers().at(0).pid)) != std::string::npos);
    CHECK(std::string(error.what()).starts_with("2 of 3 nodes failed"));
  }
  CHECK_THROWS_WITH_AS((void)Cluster({local(1)}).start("nothing"),
                       doctest::Contains("has no work function \"nothing\""), ClusterError);
}

TEST_CASE("a configuration that is not valid is refused at once") {
  CHECK_THROWS_AS(Cluster({}), UsageError);
  CHECK_THROWS_AS(Cluster({NodeConfig{.host = "-oProxyCommand=evil"}}), UsageError);
  CHECK_THROWS_AS(Cluster({NodeConfig{.host = "a", .num_workers = 0}}), UsageError);
  CHECK_THROWS_AS(Cluster({NodeConfig{.host = "a", .base_port = 70'000}}), UsageError);
  Cluster cluster({local(1)});
  CHECK_THROWS_AS((void)cluster.connect_to_servers("test_echo"), UsageError);
}

TEST_CASE("environment, GPUs and output") {
  char folder[] = "/tmp/miniray-test-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  NodeConfig node = local(2);
  node.gpus_per_worker = 2;
  node.env = described_machine();
  node.env["MINIRAY_TEST"] = "yes";
  ClusterOptions options;
  options.output = folder;
  Cluster cluster({node}, options);
  const std::span<Worker> workers = cluster.start("test_environment");
  CHECK(workers[0].recv() == Value::list({"yes", "0,1"}));
  CHECK(workers[1].recv() == Value::list({"yes", "2,3"}));
  cluster.stop();
  for (const char* name : {"/localhost.0.log", "/localhost.1.log"}) {
    std::ostringstream printed;
    printed << std::ifstream(std::string(folder) + name).rdbuf();
    CHECK(printed.str() == "printed by the worker\nand then it died\n");
    unlink((std::string(folder) + name).c_str());
  }
  rmdir(folder);
}

TEST_CASE("workers on some nodes only") {
  Cluster cluster({local(2), local(1), local(1)});
  cluster.launch_servers();
  StartOptions options;
  options.nodes = {2, 0};
  std::vector<Worker> workers = cluster.connect_to_servers("test_echo", options);
  REQUIRE(workers.size() == 3);
  CHECK(cluster.node_of(workers[0]) == 2);
  CHECK(cluster.node_of(workers[1]) == 0);
  CHECK(cluster.position_of("localhost#2") == 2);
  CHECK_THROWS_WITH_AS((void)cluster.position_of("node9"), doctest::Contains("its nodes are localhost, localhost#1"),
                       UsageError);
  options.nodes = {3};
  CHECK_THROWS_WITH_AS((void)cluster.connect_to_servers("test_echo", options),
                       "the cluster has no node 3; its nodes are 0 to 2", UsageError);
  options.nodes = {1, 1};
  CHECK_THROWS_AS((void)cluster.connect_to_servers("test_echo", options), UsageError);
}

TEST_CASE("a worker is replaced on its node, with its GPUs") {
  NodeConfig node = local(2);
  node.gpus_per_worker = 2;
  node.env = described_machine();
  node.env["MINIRAY_TEST"] = "yes";
  Cluster cluster({local(1), node}, {.progress = false});
  const std::span<Worker> workers = cluster.start("test_environment");
  CHECK(workers[2].recv() == Value::list({"yes", "2,3"}));
  CHECK_THROWS_AS((void)workers[2].recv(), WorkerDied);
  workers[2] = cluster.replace(workers[2]);
  CHECK(workers[2].recv() == Value::list({"yes", "2,3"}));
  CHECK(cluster.node_of(workers[2]) == 1);
  workers[2] = cluster.replace(workers[2], 0);
  CHECK(cluster.node_of(workers[2]) == 0);
  Worker stranger([](Handle& handle) { (void)handle.recv(); });
  CHECK_THROWS_AS((void)cluster.replace(stranger), UsageError);
}

TEST_CASE("a server that died is launched again, and the other nodes are not disturbed") {
  Cluster cluster({local(1), local(1)});
  const std::span<Worker> workers = cluster.start("test_echo");
  const auto old = static_cast<pid_t>(cluster.servers().at(1).pid);
  const std::int64_t other = cluster.servers().at(0).pid;
  kill(old, SIGKILL);
  CHECK_THROWS_AS((void)workers[1].recv(), WorkerDied);
  CHECK_THROWS_AS((void)cluster.replace(workers[1]), ClusterError);
  for (int i = 0; i < 2; ++i) {  // the second time, the server that runs is ended
    cluster.relaunch(1);
    CHECK(cluster.servers().at(1).pid != old);
    workers[1] = cluster.replace(workers[1]);
    cluster.broadcast(Array::zeros<double>({100'000}));
    CHECK(cluster.gather().size() == 2);
  }
  CHECK(cluster.servers().at(0).pid == other);
  CHECK_THROWS_AS(cluster.relaunch(2), UsageError);
}

TEST_CASE("a relaunch that its pool left half-way is finished by the next start") {
  Cluster cluster({local(1)});
  const std::span<Worker> workers = cluster.start("test_echo");
  kill(static_cast<pid_t>(cluster.servers().at(0).pid), SIGKILL);
  CHECK_THROWS_AS((void)workers[0].recv(), WorkerDied);
  {
    Replacement half_way(cluster, workers[0], 0);
    wait_until("a new launch, since the dead server refuses", [&] {
      REQUIRE_FALSE(half_way.advance());
      return half_way.relaunching();
    });
  }
  std::span<Worker> next = cluster.start("test_echo");
  next[0].send("here");
  CHECK(next[0].recv() == Value("here"));
}

TEST_CASE("a node that cannot be launched again has no server until it can") {
  char folder[] = "/tmp/miniray-test-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  NodeConfig node = local(1);
  node.workdir = folder;
  Cluster cluster({local(1), node});
  const std::span<Worker> workers = cluster.start("test_echo");
  REQUIRE(rmdir(folder) == 0);
  CHECK_THROWS_WITH_AS(cluster.relaunch(1), doctest::Contains("1 of 1 node failed"), ClusterError);
  CHECK_THROWS_WITH_AS((void)cluster.replace(workers[1]),
                       doctest::Contains("the node has no server. Call relaunch() to try again"), ClusterError);
  CHECK_THROWS_AS((void)cluster.connect_to_servers("test_echo"), ClusterError);
  REQUIRE(mkdir(folder, 0700) == 0);
  cluster.relaunch(1);
  workers[1] = cluster.replace(workers[1]);
  cluster.broadcast(1);
  CHECK(cluster.gather().size() == 2);
  cluster.stop();
  rmdir(folder);
}

TEST_CASE("a dead worker's certificate has what it printed, and a broadcast reaches the others") {
  ClusterOptions options;
  options.output = "/tmp";
  Cluster cluster({local(2)}, options);
  const std::span<Worker> workers = cluster.start("test_environment");
  (void)cluster.gather();
  const std::span<Worker> echoes = cluster.start("test_echo");
  CHECK_THROWS_WITH_AS((void)workers[0].recv(), doctest::Contains("and then it died"), WorkerDied);
  CHECK_THROWS_AS(cluster.broadcast(1), WorkerDied);
  for (Worker& echo : echoes) CHECK(echo.recv() == Value(1));
  cluster.stop();
  for (const char* name : {"/tmp/localhost.0.log", "/tmp/localhost.1.log"}) unlink(name);
}

}  // namespace miniray
