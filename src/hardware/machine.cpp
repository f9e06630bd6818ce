// Implements miniray/hardware.hpp: combines what NVML says of the GPUs with what hwloc says of the CPUs.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/system.hpp"
#include "hardware/hwloc.hpp"
#include "hardware/nvml.hpp"
#include "miniray/error.hpp"
#include "miniray/hardware.hpp"

namespace miniray {
namespace {

// Returns the GPUs that CUDA_VISIBLE_DEVICES lets this process see. As in CUDA, the first entry that names no GPU hides
// itself and all entries after it.
std::vector<Gpu> visible(std::vector<Gpu> all) {
  const char* setting = std::getenv("CUDA_VISIBLE_DEVICES");
  for (Gpu& gpu : all) gpu.visible_as = std::to_string(gpu.index);
  if (setting == nullptr) return all;
  std::vector<Gpu> seen;
  std::istringstream entries(setting);
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::erase(entry, ' ');
    const auto found = std::ranges::find_if(all, [&](const Gpu& gpu) {
      return entry == std::to_string(gpu.index) || (entry.starts_with("GPU-") && gpu.uuid.starts_with(entry));
    });
    if (found != all.end()) {
      seen.push_back(*found);
    } else if (entry.starts_with("MIG-")) {  // a part of a GPU; only CUDA knows of which one
      seen.emplace_back().name = entry;
    } else {
      break;
    }
    seen.back().visible_as = entry;
  }
  return seen;
}

const Gpu& gpu_of(const Machine& machine, int gpu) {
  if (gpu >= 0 && static_cast<std::size_t>(gpu) < machine.gpus.size())
    return machine.gpus[static_cast<std::size_t>(gpu)];
  std::string why;
  for (const std::string& note : machine.notes) why += "; " + note;
  const char* setting = std::getenv("CUDA_VISIBLE_DEVICES");
  throw UsageError("there is no GPU " + std::to_string(gpu) + ": this process sees " +
                   std::to_string(machine.gpus.size()) + " GPUs" +
                   (setting != nullptr ? " (CUDA_VISIBLE_DEVICES=" + std::string(setting) + ")" : "") + why);
}

}  // namespace

Machine discover_machine() {
  Machine machine;
  GpuSurvey gpus = survey_gpus();
  machine.gpus = visible(std::move(gpus.gpus));
  machine.driver_version = std::move(gpus.driver_version);
  CpuSurvey cpus = survey_cpus();
  machine.numa_nodes = std::move(cpus.numa_nodes);
  for (const std::string& note : {gpus.note, cpus.note})
    if (!note.empty()) machine.notes.push_back(note);
  return machine;
}

std::vector<int> cpus_next_to(const Machine& machine, const std::vector<Gpu>& gpus) {
  std::set<int> cpus;
  std::size_t all = 0;
  for (const NumaNode& node : machine.numa_nodes) {
    all += node.cpus.size();
    if (std::ranges::find(gpus, node.index, &Gpu::numa_node) != gpus.end())
      cpus.insert(node.cpus.begin(), node.cpus.end());
  }
  // If the place of one GPU is not known, any restriction could put the process far from it.
  if (cpus.size() == all || std::ranges::find(gpus, -1, &Gpu::numa_node) != gpus.end()) return {};
  return {cpus.begin(), cpus.end()};
}

int get_gpu_numa_node(int gpu) { return gpu_of(discover_machine(), gpu).numa_node; }

std::vector<int> set_gpu_affinity(int gpu) {
  const Machine machine = discover_machine();
  return system::pin_to_cpus(cpus_next_to(machine, {gpu_of(machine, gpu)}));
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]) + (last > i ? "-" + std::to_string(cpus[last]) : "");
    i = last + 1;
  }
  return text;
}

}  // namespace miniray
