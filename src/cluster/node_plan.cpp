#include "cluster/node_plan.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error_text.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr double rounding = 1e-6;  // so that three shares of 0.333333 fit on one GPU

std::string counted(std::size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

double workers_per_gpu(double share) { return std::floor(1 / share + rounding); }

std::vector<Gpu> choose(const Machine& machine, const std::string& node, const std::vector<int>& wanted) {
  if (wanted.empty()) return machine.gpus;
  std::vector<Gpu> chosen;
  for (const int position : wanted) {
    if (position < 0 || static_cast<std::size_t>(position) >= machine.gpus.size())
      throw UsageError(node + " has no GPU " + std::to_string(position) + ", which gpus names: it has " +
                       counted(machine.gpus.size(), "GPU") + ", numbered from 0");
    if (std::ranges::count(wanted, position) > 1)
      throw UsageError("gpus names GPU " + std::to_string(position) + " twice");
    chosen.push_back(machine.gpus[static_cast<std::size_t>(position)]);
  }
  return chosen;
}

std::string visible_devices(const std::vector<Gpu>& gpus) {
  std::string list;
  for (const Gpu& gpu : gpus) list += (list.empty() ? "" : ",") + gpu.visible_as;
  return list;
}

}  // namespace

void check(const NodeConfig& node) {
  // ssh would take a host that begins with "-" for an option.
  if (node.host.empty() || node.host.front() == '-')
    throw UsageError("a node's host is a name or an address, not \"" + node.host + "\"");
  if (node.num_workers < 1)
    throw UsageError(node.host + ": num_workers is 1 or more, not " + std::to_string(node.num_workers));
  if (node.base_port < 0 || node.base_port > 65535)
    throw UsageError(node.host + ": base_port is a port from 1 to 65535, or 0 for any free port, not " +
                     std::to_string(node.base_port));
  check_gpus_per_worker(node.gpus_per_worker, node.host);
}

std::vector<std::string> node_names(const std::vector<NodeConfig>& nodes) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::string name = nodes[i].host;
    if (taken.contains(name) && nodes[i].base_port > 0) name += ":" + std::to_string(nodes[i].base_port);
    if (taken.contains(name)) name = nodes[i].host + "#" + std::to_string(i);
    taken.insert(name);
    names.push_back(name);
  }
  return names;
}

void check_gpus_per_worker(double gpus_per_worker, const std::string& node) {
  const bool whole = gpus_per_worker == std::floor(gpus_per_worker);
  const bool a_share = gpus_per_worker >= 1.0 / limits::workers_per_gpu_max && gpus_per_worker < 1;
  if (a_share || (whole && gpus_per_worker >= 0 && gpus_per_worker <= limits::gpus_per_worker_max)) return;
  throw UsageError(node + ": gpus_per_worker is 0 (each worker sees all GPUs), a whole number, or a share of one " +
                   "GPU such as 0.5, not " + number_text(gpus_per_worker));
}

std::optional<GpuShortage> gpu_shortage(const Machine& machine, int workers, double gpus_per_worker,
                                        const StartOptions& options) {
  if (machine.gpus.empty() || gpus_per_worker <= 0) return std::nullopt;
  const std::size_t count = options.gpus.empty() ? machine.gpus.size() : options.gpus.size();
  const auto have = static_cast<double>(count);
  // A share is of one GPU: a worker never gets parts of two.
  const double fit = gpus_per_worker < 1 ? workers_per_gpu(gpus_per_worker) * have : have / gpus_per_worker;
  if (workers <= fit + rounding) return std::nullopt;
  return GpuShortage{"has too few GPUs: " + counted(count, "GPU") + (options.gpus.empty() ? "" : " (named by gpus)") +
                         " can serve " + counted(static_cast<std::size_t>(fit), "worker") + " with gpus_per_worker=" +
                         number_text(gpus_per_worker) + ", and num_workers is " + std::to_string(workers),
                     "Start fewer workers, or set gpus_per_worker=" +
                         number_text(have >= workers ? std::floor(have / workers) : 1 / std::ceil(workers / have))};
}

std::vector<WorkerPlace> plan_gpus(const Machine& machine, const std::string& node, int workers, double gpus_per_worker,
                                   const StartOptions& options) {
  std::vector<WorkerPlace> places(static_cast<std::size_t>(workers));
  if (machine.gpus.empty()) return places;
  const std::vector<Gpu> gpus = choose(machine, node, options.gpus);
  if (const std::optional<GpuShortage> shortage = gpu_shortage(machine, workers, gpus_per_worker, options))
    throw UsageError(node + " " + shortage->what + ". " + shortage->cure);
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::vector<Gpu> own = gpus;
    if (gpus_per_worker > 0 && gpus_per_worker < 1) {
      own = {gpus[i / static_cast<std::size_t>(workers_per_gpu(gpus_per_worker))]};
    } else if (gpus_per_worker > 0) {
      const auto each = static_cast<std::ptrdiff_t>(gpus_per_worker);
      const auto first = gpus.begin() + static_cast<std::ptrdiff_t>(i) * each;
      own.assign(first, first + each);
    }
    places[i].environment["CUDA_VISIBLE_DEVICES"] = visible_devices(own);
    places[i].environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";  // NVML numbers the GPUs in this order
    if (options.pin_cpus) places[i].cpus = cpus_next_to(machine, own);
  }
  return places;
}

}  // namespace miniray
