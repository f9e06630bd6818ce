// Finds the GPUs and NUMA nodes of this machine, and runs a process on the CPUs next to its GPU. NVML and hwloc are
// loaded by the call that needs them; without them, the calls work and Machine::notes says what is not known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

struct Gpu {
  int index = 0;  ///< its position among all GPUs of the machine, in the order of their PCI addresses
  std::string name, uuid;
  std::string pci_address;  ///< "0000:3b:00.0"
  std::uint64_t memory_bytes = 0;
  int numa_node = -1;      ///< -1: not known
  std::string visible_as;  ///< the entry of CUDA_VISIBLE_DEVICES that names it in this process
};

struct NumaNode {
  int index = 0;
  std::vector<int> cpus;  ///< the CPUs of this node that this process may use
};

struct Machine {
  std::vector<Gpu> gpus;  ///< the GPUs that this process sees, in the order in which CUDA numbers them for it
  std::vector<NumaNode> numa_nodes;
  std::string driver_version;      ///< of the NVIDIA driver; empty if there is none
  std::vector<std::string> notes;  ///< what could not be found out, why, and what to install
};

/// Returns what NVIDIA's driver and hwloc say about this machine. It takes from milliseconds to about a second.
[[nodiscard]] Machine discover_machine();

/// Returns the NUMA node of the GPU that this process sees as number `gpu`, or -1 if it is not known. Throws UsageError
/// if the process sees no such GPU.
[[nodiscard]] int get_gpu_numa_node(int gpu);

/// Moves this thread, and every thread and process that it starts from now on, to the CPUs next to that GPU, and
/// returns those CPUs. If they are not known, or are all CPUs, it changes nothing and returns an empty list. Throws
/// UsageError if the process sees no such GPU.
std::vector<int> set_gpu_affinity(int gpu);

/// Returns the CPUs next to the GPUs; an empty list if they are not known, or are all CPUs.
[[nodiscard]] std::vector<int> cpus_next_to(const Machine& machine, const std::vector<Gpu>& gpus);

/// Returns "0-3,8", the form that taskset and the kernel use.
[[nodiscard]] std::string cpu_list_text(const std::vector<int>& cpus);

}  // namespace miniray
