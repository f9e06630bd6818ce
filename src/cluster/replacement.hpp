// A worker on its way to the place of a cluster's worker that is gone. Never waits.
#pragma once

#include <memory>
#include <optional>

#include "miniray/cluster.hpp"

namespace miniray {

class Replacement {
 public:
  /// The cluster forgets the worker that is gone. It must outlive this.
  Replacement(Cluster& cluster, Worker& gone, std::size_t node);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement();

  /// Goes on as far as it can, and returns the worker once it is there: the same function with the same GPUs. The
  /// node's server is launched again if it cannot be reached. Throws ClusterError if the node cannot be had now; the
  /// next call begins anew.
  [[nodiscard]] std::optional<Worker> advance();
  /// A connection to the node's server for large buffers, if the server is new.
  [[nodiscard]] std::optional<Channel> new_link();

  struct Inside;

 private:
  std::unique_ptr<Inside> inside_;
};

}  // namespace miniray
