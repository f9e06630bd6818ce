#include "miniray/nccl.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "miniray/error.hpp"

namespace miniray {

TEST_CASE("ranks follow the nodes") {
  const std::vector<NCCLConfig> configs = create_nccl_configs("10.0.0.1", {{"node1", 2}, {"node2", 3}}, 29501);
  REQUIRE(configs.size() == 5);
  CHECK(configs[0] == NCCLConfig{"10.0.0.1", 29501, 5, 0, 0});
  CHECK(configs[2] == NCCLConfig{"10.0.0.1", 29501, 5, 2, 0});
  CHECK(configs[4] == NCCLConfig{"10.0.0.1", 29501, 5, 4, 2});
  CHECK(describe(configs[4]) == "rank 4 of 5 (local rank 2), master 10.0.0.1:29501");
}

TEST_CASE("a config is a message, and comes back") {
  NCCLConfig config{"::1", 29500, 4, 3, 1};
  CHECK(nccl_config(Value(config)) == config);
  CHECK(Value(config).size() == 5);
  config.interface = "eth0";
  CHECK(nccl_config(Value(config)) == config);
  CHECK(describe(config) == "rank 3 of 4 (local rank 1), master [::1]:29500, Gloo through eth0");
  Value broken = config;
  broken["rank"] = 4;
  CHECK_THROWS_AS((void)nccl_config(broken), UsageError);
  broken["rank"] = INT64_MAX;
  CHECK_THROWS_AS((void)nccl_config(broken), UsageError);
}

TEST_CASE("every field is checked, and the error says what is allowed") {
  const auto refusal = [](const NCCLConfig& config) -> std::string {
    try {
      check_nccl_config(config);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  CHECK(refusal({"a"}).empty());
  CHECK(refusal({"fe80::1"}).empty());
  CHECK(refusal({""}) == "master_addr is the name or the address of rank 0's node, such as 10.0.0.1, not \"\"");
  CHECK(refusal({"10.0.0.1:29500"}).ends_with("not \"10.0.0.1:29500\"; the port goes into master_port"));
  CHECK(refusal({"tcp://a"}).ends_with("leave out the scheme"));
  CHECK(refusal({"a b"}).ends_with("not \"a b\""));
  CHECK(refusal({"a", 0}) == "master_port is a number from 1 to 65535, not 0");
  CHECK(refusal({"a", 65536}) == "master_port is a number from 1 to 65535, not 65536");
  CHECK(refusal({"a", 1, 0}) == "world_size is a number from 1 to 1000000, not 0");
  CHECK(refusal({"a", 1, 4, 4}) == "rank is a number from 0 to 3 (world_size is 4), not 4");
  CHECK(refusal({"a", 1, 4, -1}) == "rank is a number from 0 to 3 (world_size is 4), not -1");
  CHECK(refusal({"a", 1, 4, 0, 4}) == "local_rank is a number from 0 to 3 (world_size is 4), not 4");
  CHECK(refusal({"a", 1, 4, 0, 0, "eth 0"}) ==
        "interface is the name of a network interface, such as eth0, not \"eth 0\"");
  CHECK_THROWS_AS((void)create_nccl_configs("a", {}), UsageError);
  CHECK_THROWS_WITH_AS((void)create_nccl_configs("a", {{"node1", 0}}),
                       "each node needs at least one process, and node1 has 0", UsageError);
  CHECK_THROWS_AS((void)create_nccl_configs("a", {{"n", INT32_MAX}, {"m", INT32_MAX}}), UsageError);
}

TEST_CASE("the environment is set, and restored") {
  setenv("RANK", "7", 1);
  unsetenv("MASTER_ADDR");
  setenv("GLOO_SOCKET_IFNAME", "mine", 1);
  const OldEnvironment before = setup_nccl_env({"10.0.0.1", 29501, 4, 2, 1, "eth0"});
  CHECK(std::string(std::getenv("MASTER_ADDR")) == "10.0.0.1");
  CHECK(std::string(std::getenv("MASTER_PORT")) == "29501");
  CHECK(std::string(std::getenv("WORLD_SIZE")) == "4");
  CHECK(std::string(std::getenv("RANK")) == "2");
  CHECK(std::string(std::getenv("LOCAL_RANK")) == "1");
  CHECK(std::string(std::getenv("GLOO_SOCKET_IFNAME")) == "mine");  // what the user has set is kept
  CHECK(before.size() == 5);
  CHECK(before.at("RANK") == "7");
  CHECK(!before.at("MASTER_ADDR"));
  restore_nccl_env(before);
  CHECK(std::string(std::getenv("RANK")) == "7");
  CHECK(std::getenv("MASTER_ADDR") == nullptr);
  CHECK_THROWS_AS(setup_nccl_env({"10.0.0.1", 29501, 4, 4}), UsageError);
  CHECK(std::string(std::getenv("RANK")) == "7");  // no variable was changed
  for (const char* name : {"RANK", "GLOO_SOCKET_IFNAME"}) unsetenv(name);
}

}  // namespace miniray
