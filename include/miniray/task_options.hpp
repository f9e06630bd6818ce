// What a task of a pool needs, and what happens when it fails.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "miniray/export.hpp"
#include "miniray/seconds.hpp"

namespace MINIRAY_API miniray {

/// Amounts of resources, by name.
using Amounts = std::map<std::string, double>;

/// Which node of a pool gets a task: spread prefers the node with most free CPUs, pack the one with least.
enum class Strategy : std::uint8_t { spread, pack };

struct TaskOptions {
  // These are reserved on the node while the task runs. By default, a node has as many CPUs as workers.
  double num_cpus = 1;
  /// Below 1, it is a share of one GPU; else whole GPUs. CUDA_VISIBLE_DEVICES of the worker names them. A worker that
  /// had other GPUs is replaced before the task begins.
  double num_gpus = 0;
  Amounts resources = {};  ///< resources that PoolOptions names

  std::string node = {};  ///< the name of the node that must run the task; empty: any node
  Strategy strategy = Strategy::spread;
  /// How long the task may run. After that its worker is killed, and get() throws TaskTimeout.
  Timeout timeout_s = {};
  int retries = 0;  ///< how often the task is tried again if its worker dies
  /// How much memory the task may allocate beyond what its worker has. If it needs more, get() throws TaskOutOfMemory.
  std::optional<std::uint64_t> memory_bytes = {};
};

}  // namespace miniray
