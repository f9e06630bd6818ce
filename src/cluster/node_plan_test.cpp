#include "cluster/node_plan.hpp"

#include <doctest/doctest.h>

#include "miniray/error.hpp"
#include "tests/described_machine.hpp"

namespace miniray {
namespace {

std::vector<std::string> devices(const std::vector<WorkerPlace>& places) {
  std::vector<std::string> lists;
  for (const WorkerPlace& place : places) {
    const auto found = place.environment.find("CUDA_VISIBLE_DEVICES");
    lists.push_back(found != place.environment.end() ? found->second : "-");
  }
  return lists;
}

using Lists = std::vector<std::string>;

}  // namespace

TEST_CASE("each worker has its own GPUs, and the CPUs next to them") {
  const Described described(Described::Variables{{"HWLOC_SYNTHETIC", "numa:2 core:4 pu:1"}});
  const Machine machine = discover_machine();
  CHECK(devices(plan_gpus(machine, "n", 8, 1, {})) == Lists{"0", "1", "2", "3", "4", "5", "6", "7"});
  CHECK(devices(plan_gpus(machine, "n", 2, 4, {})) == Lists{"0,1,2,3", "4,5,6,7"});
  CHECK(devices(plan_gpus(machine, "n", 3, 0, {})) == Lists(3, "0,1,2,3,4,5,6,7"));
  const std::vector<WorkerPlace> places = plan_gpus(machine, "n", 4, 2, {});
  CHECK(places[1].cpus == std::vector<int>{0, 1, 2, 3});
  CHECK(places[2].cpus == std::vector<int>{4, 5, 6, 7});
  CHECK(places[2].environment.at("CUDA_DEVICE_ORDER") == "PCI_BUS_ID");
  CHECK(plan_gpus(machine, "n", 4, 2, {.pin_cpus = false})[2].cpus.empty());
}

TEST_CASE("workers share a GPU, and a start uses some GPUs of a node") {
  const Described described;
  const Machine machine = discover_machine();
  CHECK(devices(plan_gpus(machine, "n", 4, 0.5, {})) == Lists{"0", "0", "1", "1"});
  CHECK(devices(plan_gpus(machine, "n", 4, 1.0 / 3, {.gpus = {7, 2}})) == Lists{"7", "7", "7", "2"});
  CHECK(devices(plan_gpus(machine, "n", 4, 1, {.gpus = {4, 5, 6, 7}})) == Lists{"4", "5", "6", "7"});
  CHECK(devices(plan_gpus(machine, "n", 1, 0, {.gpus = {1, 3}})) == Lists{"1,3"});
}

TEST_CASE("too few GPUs are an error, and no GPU is none") {
  const Described described;
  const Machine machine = discover_machine();
  CHECK_THROWS_WITH_AS(
      (void)plan_gpus(machine, "node1", 16, 1, {}),
      "node1 has too few GPUs: 8 GPUs can serve 8 workers with gpus_per_worker=1, and num_workers is 16. Start fewer "
      "workers, or set gpus_per_worker=0.5",
      UsageError);
  CHECK_THROWS_WITH_AS((void)plan_gpus(machine, "node1", 1, 1, {.gpus = {8}}),
                       "node1 has no GPU 8, which gpus names: it has 8 GPUs, numbered from 0", UsageError);
  CHECK_THROWS_WITH_AS((void)plan_gpus(machine, "node1", 5, 0.5, {.gpus = {1, 2}}),
                       "node1 has too few GPUs: 2 GPUs (named by gpus) can serve 4 workers with gpus_per_worker=0.5, "
                       "and num_workers is 5. Start fewer workers, or set gpus_per_worker=0.333333",
                       UsageError);
  CHECK(devices(plan_gpus(machine, "node1", 5, 0.333333, {.gpus = {1, 2}})) == Lists{"1", "1", "1", "2", "2"});
  CHECK(devices(plan_gpus({}, "node1", 16, 1, {.gpus = {0}})) == Lists(16, "-"));
  CHECK_THROWS_WITH_AS(check_gpus_per_worker(1.5, "node1"),
                       "node1: gpus_per_worker is 0 (each worker sees all GPUs), a whole number, or a share of "
                       "one GPU such as 0.5, not 1.5",
                       UsageError);
  CHECK_THROWS_AS(check_gpus_per_worker(-1, "node1"), UsageError);
}

}  // namespace miniray
