// Workers on several machines, reached through ssh:
//
//   int main(int argc, char** argv) {
//     miniray::init(argc, argv, {{"matrix_worker", matrix_worker}});   // on a node, this is the worker server
//     miniray::Cluster cluster({{"node1"}, {"node2", 8}});
//     auto workers = cluster.start("matrix_worker");
//
// The program itself is copied to the nodes, once for each content; nothing else is needed there. When the cluster, or
// the process that made it, ends, so does everything that it started, on every node.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "miniray/launch.hpp"
#include "miniray/worker.hpp"

namespace miniray {

/// What one start() says differently from the nodes' configuration.
struct StartOptions {
  std::optional<int> num_workers = {};  ///< on each node
  std::optional<double> gpus_per_worker = {};
  /// Which of each node's GPUs, by their numbers there, are given out; empty: all. Two starts that name the same GPUs
  /// share them.
  std::vector<int> gpus = {};
  bool pin_cpus = true;                 ///< to those next to the worker's GPUs, where that is known
  std::vector<std::size_t> nodes = {};  ///< on these only, by position; empty: on all
};

/// Calls may come from any thread, one at a time.
class Cluster {
 public:
  explicit Cluster(std::vector<NodeConfig> nodes, ClusterOptions options = {});
  Cluster(Cluster&&) noexcept;
  Cluster& operator=(Cluster&&) noexcept;
  /// Like stop().
  ~Cluster();

  /// Launches the servers if they are not up, and starts the workers of every node: in the order of the nodes, then of
  /// the workers. They belong to the cluster. May be called again, for another function: both sets live side by side.
  [[nodiscard]] std::span<Worker> start(const std::string& work_fn, const StartOptions& options = {});

  /// The same message to all workers that start() made. It is encoded once, and large buffers go to each node once.
  void broadcast(const Value& message);
  /// The next message of each, in order, within one time-out for all. If one cannot be had, it throws, and the messages
  /// of the others are still there.
  [[nodiscard]] std::vector<Value> gather(const ReceiveOptions& options = {});

  /// Ends the workers, then the servers, and waits for what was printed. May be started again afterwards. If the wait
  /// is interrupted, the rest goes faster, and the interrupt is thrown once all has ended.
  void stop() { stop({}); }

  // One rung lower.
  /// All nodes at once. `work_fn` is imported there, so that what is wrong with it shows now; it may be empty.
  void launch_servers(const std::string& work_fn = {});
  /// The caller owns these workers.
  [[nodiscard]] std::vector<Worker> connect_to_servers(const std::string& work_fn, const StartOptions& options = {});
  /// Brings a node's server back after it died or its host was cut off; the other nodes go on. What is left of the old
  /// one, and its workers, end; should it stand still and hold its port, the new one takes any that is free. Throws
  /// ClusterError, with the cause, if the node cannot be had within the time (by default start_timeout_s); it has no
  /// server then, and this may be tried again.
  void relaunch(std::size_t node, std::optional<double> timeout_s = {});
  /// A worker for the place of one that has died: the same function with the same GPUs, on the same node or on that
  /// one. The caller owns it: `worker = cluster.replace(worker)`. Throws ClusterError if the node's server is gone too.
  [[nodiscard]] Worker replace(Worker& worker, std::optional<std::size_t> node = {});
  void broadcast(std::span<Worker* const> workers, const Message& message);
  /// Ends these workers, of connect_to_servers, along with the cluster's own.
  void stop(std::span<Worker* const> workers, Closing how = Closing::finish);
  [[nodiscard]] static std::vector<Message> gather(std::span<Worker* const> workers, const ReceiveOptions& options);
  using Server = LaunchedServer;
  [[nodiscard]] std::vector<Server> servers() const;
  [[nodiscard]] const std::vector<NodeConfig>& nodes() const;
  /// As errors call them: the host, as a rule.
  [[nodiscard]] const std::vector<std::string>& node_names() const;
  /// The position of a node, by its name. Throws UsageError if there is none.
  [[nodiscard]] std::size_t position_of(const std::string& node) const;
  /// The position of the worker's node. Throws UsageError if the worker is not this cluster's.
  [[nodiscard]] std::size_t node_of(Worker& worker) const;
  /// A process on each of these nodes that tells of it, for checks (src/cluster/probe.hpp).
  [[nodiscard]] std::vector<Worker> connect_probes(const std::vector<std::size_t>& nodes);
  /// A connection to the node's server, over which buffers for several of its workers go (docs/wire_format.md).
  [[nodiscard]] Channel open_link(std::size_t node);
  /// Ports that training groups of this cluster were given.
  [[nodiscard]] std::set<int>& ports_given();

 private:
  friend class Replacement;
  class State;
  std::unique_ptr<State> state_;
};

/// Call it first in main(). On a node, and where the program was started to attend a cluster's connections, it does
/// that and never returns; elsewhere it notes that the program can do so.
void init(int argc, char** argv, const std::map<std::string, WorkFunction>& functions = {});

}  // namespace miniray
