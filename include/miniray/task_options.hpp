// What a task of a pool asks for, and what is done when something goes wrong with it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "miniray/export.hpp"
#include "miniray/seconds.hpp"

namespace MINIRAY_API miniray {

/// Of resources, by name.
using Amounts = std::map<std::string, double>;

/// Over the nodes of a pool: spread goes where most is free, pack where least is.
enum class Strategy : std::uint8_t { spread, pack };

struct TaskOptions {
  // Set aside while the task runs. A pool's node has as many CPUs as workers.
  double num_cpus = 1;
  /// Below 1, a share of one; else whole ones. CUDA_VISIBLE_DEVICES names them in the worker, for good: the worker is
  /// replaced before a task that gets others.
  double num_gpus = 0;
  Amounts resources = {};  ///< of those in PoolOptions

  std::string node = {};  ///< by its name; empty: any
  Strategy strategy = Strategy::spread;
  /// Of running. Then the worker is ended, and TaskTimeout thrown.
  Timeout timeout_s = {};
  int retries = 0;  ///< how often it is tried again after its worker died
  /// What the task may take of memory beside what its worker has; TaskOutOfMemory if it wants more.
  std::optional<std::uint64_t> memory_bytes = {};
};

}  // namespace miniray
