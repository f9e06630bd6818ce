#include <doctest/doctest.h>

#include "base/system.hpp"
#include "miniray/error.hpp"
#include "miniray/hardware.hpp"
#include "miniray/worker.hpp"
#include "tests/described_machine.hpp"

namespace miniray {

TEST_CASE("a described machine is found: 8 GPUs on 2 NUMA nodes") {
  const Described described(Described::Variables{{"HWLOC_SYNTHETIC", "numa:2 core:8 pu:2"}});
  const Machine machine = discover_machine();
  REQUIRE(machine.gpus.size() == 8);
  CHECK(machine.driver_version == "999.01");
  CHECK(machine.gpus[0].name == "Fake GPU");
  CHECK(machine.gpus[5].uuid == "GPU-fake-5");
  CHECK(machine.gpus[5].pci_address == "0000:1f:00.0");
  CHECK(machine.gpus[5].memory_bytes == 80ULL << 30);
  CHECK(machine.gpus[3].numa_node == 0);
  CHECK(machine.gpus[4].numa_node == 1);
  CHECK(machine.gpus[4].visible_as == "4");
  REQUIRE(machine.numa_nodes.size() == 2);
  CHECK(cpu_list_text(machine.numa_nodes[1].cpus) == "16-31");
  CHECK(machine.notes.empty());
  CHECK(cpu_list_text(cpus_next_to(machine, {machine.gpus[6]})) == "16-31");
  CHECK(cpus_next_to(machine, {machine.gpus[0], machine.gpus[7]}).empty());  // all of them
  CHECK(get_gpu_numa_node(7) == 1);
  CHECK_THROWS_WITH_AS((void)get_gpu_numa_node(8), "there is no GPU 8: this process sees 8 GPUs", UsageError);
}

TEST_CASE("what CUDA_VISIBLE_DEVICES hides is hidden") {
  {
    const Described described(Described::Variables{{"CUDA_VISIBLE_DEVICES", "6,GPU-fake-1,MIG-x, 2"}});
    const Machine machine = discover_machine();
    REQUIRE(machine.gpus.size() == 4);
    CHECK(machine.gpus[0].index == 6);
    CHECK(machine.gpus[1].visible_as == "GPU-fake-1");
    CHECK(machine.gpus[1].index == 1);
    CHECK(machine.gpus[2].numa_node == -1);
    CHECK(machine.gpus[3].index == 2);
    CHECK(get_gpu_numa_node(0) == 1);
  }
  {
    const Described described(Described::Variables{{"CUDA_VISIBLE_DEVICES", "1,nonsense,2"}});  // as CUDA reads it
    CHECK(discover_machine().gpus.size() == 1);
  }
  const Described described(Described::Variables{{"CUDA_VISIBLE_DEVICES", ""}});
  CHECK(discover_machine().gpus.empty());
  CHECK_THROWS_WITH_AS((void)set_gpu_affinity(0), "there is no GPU 0: this process sees 0 GPUs (CUDA_VISIBLE_DEVICES=)",
                       UsageError);
}

TEST_CASE("a machine without a driver works, and a note says what is missing") {
  const Described described(Described::Variables{{"MINIRAY_NVML_LIBRARY", "/nowhere/libnvidia-ml.so"}});
  const Machine machine = discover_machine();
  CHECK(machine.gpus.empty());
  REQUIRE(machine.notes.size() == 1);
  CHECK(machine.notes[0].starts_with("there is no NVIDIA driver (/nowhere/libnvidia-ml.so: cannot open"));
  const Described no_library(Described::Variables{{"MINIRAY_NVML_LIBRARY", "libc.so.6"}});
  CHECK(discover_machine().notes[0] == "libc.so.6 is not the NVML library: it has no nvmlInit_v2");
}

TEST_CASE("a process runs next to its GPU") {
  if (system::usable_cpus() < 2) return;
  Worker worker([](Handle& handle) {
    const Described described;  // it has two NUMA nodes, with the CPUs 0 and 1
    const std::vector<int> pinned = set_gpu_affinity(5);
    handle.send({{"pinned", pinned.size()}, {"runs_on", cpu_list_text(system::usable_cpu_list())}});
  });
  const Value answer = worker.recv();
  CHECK(answer["pinned"] == Value(1));
  CHECK(answer["runs_on"] == Value("1"));
}

TEST_CASE("CPU lists are short") {
  CHECK(cpu_list_text({}).empty());
  CHECK(cpu_list_text({3}) == "3");
  CHECK(cpu_list_text({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
}

}  // namespace miniray
