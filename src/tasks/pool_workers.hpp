// Where a pool's workers come from, and what takes the place of one that is gone.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "miniray/pool.hpp"

namespace miniray {

/// A machine, as the scheduler sees it.
struct PoolNode {
  std::string name;
  double cpus = 0;
  std::vector<std::string> gpu_names = {};  ///< as CUDA_VISIBLE_DEVICES has them there
  Amounts custom = {};
};

struct PlacedWorker {
  std::size_t node;
  std::shared_ptr<Worker> worker;
  bool shares_clock;  ///< with this process
};

class PoolWorkers {
 public:
  PoolWorkers() = default;
  PoolWorkers(const PoolWorkers&) = delete;
  PoolWorkers& operator=(const PoolWorkers&) = delete;
  virtual ~PoolWorkers() = default;

  [[nodiscard]] const std::vector<PoolNode>& nodes() const { return nodes_; }
  /// Once.
  [[nodiscard]] std::vector<PlacedWorker> first() { return std::move(first_); }
  /// Why none takes the place of one that is gone; empty if one does.
  [[nodiscard]] virtual std::string why_not_replaced() const { return {}; }
  /// May take a while. Throws if none can be had now.
  [[nodiscard]] virtual PlacedWorker replace(std::size_t node, Worker& gone) = 0;
  /// A connection to the node's server, if it has one that has not been connected to.
  [[nodiscard]] virtual std::optional<Channel> new_link(std::size_t /*node*/) { return std::nullopt; }

 protected:
  std::vector<PoolNode> nodes_;
  std::vector<PlacedWorker> first_;
};

[[nodiscard]] std::unique_ptr<PoolWorkers> forked_workers(int count, const PoolOptions& options);
[[nodiscard]] std::unique_ptr<PoolWorkers> given_workers(std::vector<Worker> workers, const PoolOptions& options);
/// The cluster must outlive them.
[[nodiscard]] std::unique_ptr<PoolWorkers> cluster_workers(Cluster& cluster, const PoolOptions& options);

}  // namespace miniray
