// What this machine has, GPUs and NUMA nodes, and running next to one's GPU. NVML and hwloc are loaded when something
// is asked; a machine without them works, and says what it does not know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace miniray {

struct Gpu {
  int index = 0;  ///< of all GPUs of the machine, in the order of their PCI addresses
  std::string name, uuid;
  std::string pci_address;  ///< "0000:3b:00.0"
  std::uint64_t memory_bytes = 0;
  int numa_node = -1;      ///< -1: not known
  std::string visible_as;  ///< what CUDA_VISIBLE_DEVICES calls it in this process
};

struct NumaNode {
  int index = 0;
  std::vector<int> cpus;  ///< those that this process may use
};

struct Machine {
  std::vector<Gpu> gpus;  ///< those that this process sees, in the order in which CUDA numbers them for it
  std::vector<NumaNode> numa_nodes;
  std::string driver_version;      ///< NVIDIA's; empty without one
  std::vector<std::string> notes;  ///< what could not be found out, why, and what to install
};

/// Asks the driver and hwloc; takes from milliseconds to a second or so.
[[nodiscard]] Machine discover_machine();

/// The NUMA node of the GPU that this process sees as number `gpu`; -1 if it is not known. Throws UsageError if the
/// process sees no such GPU.
[[nodiscard]] int get_gpu_numa_node(int gpu);

/// This thread, and what it starts from now on, run on the CPUs next to that GPU; returns which. If that is not known,
/// or is all of them, nothing changes, and none is returned.
std::vector<int> set_gpu_affinity(int gpu);

/// The CPUs next to the GPUs; none if that is not known, or all are.
[[nodiscard]] std::vector<int> cpus_next_to(const Machine& machine, const std::vector<Gpu>& gpus);

/// "0-3,8", as taskset and the kernel write it.
[[nodiscard]] std::string cpu_list_text(const std::vector<int>& cpus);

}  // namespace miniray
