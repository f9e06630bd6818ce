// Which GPUs of a node each of its workers gets, and the CPUs next to them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/hardware.hpp"

namespace miniray {

struct WorkerPlace {
  std::map<std::string, std::string> environment;  ///< CUDA_VISIBLE_DEVICES
  std::vector<int> cpus;                           ///< none: wherever it likes
};

/// How many GPUs each worker gets: none (it sees all), whole ones, or a share of one. Throws UsageError.
void check_gpus_per_worker(double gpus_per_worker, const std::string& node);

struct GpuShortage {
  std::string what, cure;
};
/// Whether the node's GPUs are too few. None are no shortage.
[[nodiscard]] std::optional<GpuShortage> gpu_shortage(const Machine& machine, int workers, double gpus_per_worker,
                                                      const StartOptions& options);

/// A place for each worker. `chosen` are positions among the GPUs that the node sees; none: all of them. A node without
/// GPUs has places without. Throws UsageError if the GPUs do not suffice.
[[nodiscard]] std::vector<WorkerPlace> plan_gpus(const Machine& machine, const std::string& node, int workers,
                                                 double gpus_per_worker, const StartOptions& options);

}  // namespace miniray
