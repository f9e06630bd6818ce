// The plan for a node, made before workers start on it: whether its configuration is valid, its name in errors and
// output, and which GPUs and CPUs each of its workers gets.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/hardware.hpp"

namespace miniray {

/// Throws a UsageError that names the node and the field if the configuration is not valid.
void check(const NodeConfig& node);

/// Returns the nodes' names: the host, followed by the port or the position if another node has the same host.
[[nodiscard]] std::vector<std::string> node_names(const std::vector<NodeConfig>& nodes);

/// The GPUs and CPUs of one worker.
struct WorkerPlace {
  std::map<std::string, std::string> environment;  ///< CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
  std::vector<int> cpus;                           ///< empty: any CPU
};

/// Throws UsageError unless gpus_per_worker is 0, a whole number, or a share of one GPU.
void check_gpus_per_worker(double gpus_per_worker, const std::string& node);

struct GpuShortage {
  std::string what, cure;
};
/// Returns what is missing if the node has too few GPUs for its workers. A node without any GPU has no shortage: its
/// workers run without GPUs.
[[nodiscard]] std::optional<GpuShortage> gpu_shortage(const Machine& machine, int workers, double gpus_per_worker,
                                                      const StartOptions& options);

/// Returns a place for each worker. On a node without GPUs, the places are empty. Throws UsageError if the node has too
/// few GPUs, or if `options.gpus` names one that it does not have.
[[nodiscard]] std::vector<WorkerPlace> plan_gpus(const Machine& machine, const std::string& node, int workers,
                                                 double gpus_per_worker, const StartOptions& options);

}  // namespace miniray
