// Starts a worker in place of a worker of a cluster that has died, without waiting: a pool does this while its other
// workers go on.
#pragma once

#include <memory>
#include <optional>

#include "miniray/cluster.hpp"

namespace miniray {

class Replacement {
 public:
  /// Makes the cluster drop the dead worker. The cluster must outlive this object. Throws UsageError if the worker is
  /// not one of the cluster's.
  Replacement(Cluster& cluster, Worker& dead, std::size_t node);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement();

  /// Does what can be done without waiting. Returns the new worker once it has started, with the same function and the
  /// same GPUs; nullopt before. If the node's server cannot be reached, it is launched again. Throws ClusterError if
  /// that fails too; the next call then starts over.
  [[nodiscard]] std::optional<Worker> advance();
  /// Returns whether the node's server is being launched again.
  [[nodiscard]] bool relaunching() const;
  /// Returns a connection to the node's server for large buffers, if the server was launched again; else nullopt.
  [[nodiscard]] std::optional<Channel> new_link();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace miniray
