// A Cluster starts workers on several machines, which it reaches through ssh:
//
//   int main(int argc, char** argv) {
//     miniray::init(argc, argv, {{"matrix_worker", matrix_worker}});   // on a node, this is the worker server
//     miniray::Cluster cluster({{"node1"}, {"node2", 8}});
//     auto workers = cluster.start("matrix_worker");
//
// The cluster copies the program itself to the nodes (and keeps it there, so that an unchanged program is copied once);
// they need nothing else. When the cluster or its process ends, everything that it started on any node ends too.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "miniray/export.hpp"
#include "miniray/launch.hpp"
#include "miniray/seconds.hpp"
#include "miniray/worker.hpp"

namespace MINIRAY_API miniray {

/// Options of one start(). A value that is set replaces the one in the nodes' configuration.
struct StartOptions {
  std::optional<int> num_workers = {};  ///< on each node
  std::optional<double> gpus_per_worker = {};
  /// The GPUs of each node that the workers may use, by their numbers there; empty: all. Two starts that name the same
  /// GPUs share them.
  std::vector<int> gpus = {};
  bool pin_cpus = true;                 ///< run each worker on the CPUs next to its GPUs, if those are known
  std::vector<std::size_t> nodes = {};  ///< start workers only on the nodes at these positions; empty: on all
};

/// A cluster owns its servers and the workers of start(). Any thread may call it, but only one at a time. It may be
/// moved while no call is under way, and what start() has returned stays valid; but a Pool, supervised workers and a
/// training group refer to the Cluster object, which must stay where it is while they live. A Cluster that was moved
/// from can be destroyed and assigned to, and every other call on it throws UsageError. An assignment stops the cluster
/// that was there.
class Cluster {
 public:
  /// Starts nothing yet. Throws UsageError if the configuration is not valid.
  explicit Cluster(std::vector<NodeConfig> nodes, ClusterOptions options = {});
  Cluster(Cluster&&) noexcept;
  Cluster& operator=(Cluster&&) noexcept;
  /// Stops the cluster as stop() does, but throws nothing.
  ~Cluster();

  /// Launches the servers if they are not up, and starts the workers of every node. Returns the workers, ordered by
  /// node and then by their number on the node; the cluster owns them. You may call it again for another function: both
  /// sets of workers then run side by side. Throws ClusterError if a node fails; if the servers were not up before,
  /// they are ended again.
  [[nodiscard]] std::span<Worker> start(const std::string& work_fn, const StartOptions& options = {});

  /// Sends one message to all workers of start(). It is encoded once, and a large buffer crosses the network once for
  /// each node. Throws WorkerDied if a worker has died, after the message was sent to all others.
  void broadcast(const Value& message);
  /// Waits for the next message of every worker of start(), and returns the messages in the order of the workers. One
  /// time-out covers all. If a worker fails or the time is over, it throws, and no message is lost: the next gather()
  /// or recv() returns the messages that had arrived.
  [[nodiscard]] std::vector<Value> gather(const ReceiveOptions& options = {});

  /// Closes the workers, then ends the servers, and waits until everything that the workers printed is shown.
  /// Afterwards the cluster may be started again. If on_interrupt throws meanwhile, workers and servers are ended
  /// faster, and the exception is thrown once all have ended.
  void stop() { stop({}); }

  // One rung lower.

  /// Launches the servers of all nodes at once. The servers load `work_fn` if it is not empty, so that a mistake in it
  /// shows now. Throws ClusterError with nothing left running if a node fails.
  void launch_servers(const std::string& work_fn = {});
  /// Starts workers like start(), but the servers must be up, and the caller owns the workers.
  [[nodiscard]] std::vector<Worker> connect_to_servers(const std::string& work_fn, const StartOptions& options = {});
  /// Launches a node's server again after it died or its host was cut off; other nodes are not disturbed. The old
  /// server and its workers are ended. If the old server hangs and keeps its port, the new one listens on any free
  /// port. Throws ClusterError, with the cause, if the server is not up within `timeout_s` (by default
  /// start_timeout_s). The node then has no server, and you may call relaunch() again.
  void relaunch(std::size_t node, Timeout timeout_s = {});
  /// Starts a worker in place of one that has died, with the same function and the same GPUs, on the same node or on
  /// `node`. The caller owns the new worker: `worker = cluster.replace(worker)`. Throws ClusterError if the node's
  /// server is not running either; relaunch() the node then.
  [[nodiscard]] Worker replace(Worker& worker, std::optional<std::size_t> node = {});
  /// Sends an encoded message to these workers.
  void broadcast(std::span<Worker* const> workers, const Message& message);
  /// Stops the cluster, and closes these workers of connect_to_servers() together with its own.
  void stop(std::span<Worker* const> workers, Closing how = Closing::finish);
  /// Returns the next encoded message of each of these workers, as gather() does.
  [[nodiscard]] static std::vector<Message> gather(std::span<Worker* const> workers, const ReceiveOptions& options);
  using Server = LaunchedServer;
  /// Returns the servers by node; an empty list if they are not up.
  [[nodiscard]] std::vector<Server> servers() const;
  [[nodiscard]] const std::vector<NodeConfig>& nodes() const;
  /// Returns the names of the nodes in errors and output: the host, with its port or position if two nodes share it.
  [[nodiscard]] const std::vector<std::string>& node_names() const;
  /// Returns the position of the node of this name. Throws UsageError if there is none.
  [[nodiscard]] std::size_t position_of(const std::string& node) const;
  /// Returns the position of the worker's node. Throws UsageError if the worker does not belong to this cluster.
  [[nodiscard]] std::size_t node_of(Worker& worker) const;
  /// Starts a probe on each of these nodes: a process that reports about its machine (src/cluster/probe.hpp).
  [[nodiscard]] std::vector<Worker> connect_probes(const std::vector<std::size_t>& nodes);
  /// Opens a connection to the node's server that carries buffers for several of its workers (docs/wire_format.md).
  [[nodiscard]] Channel open_link(std::size_t node);
  /// Returns the ports that training groups of this cluster use, so that two groups do not choose the same one.
  [[nodiscard]] std::set<int>& ports_given();

 private:
  friend class Replacement;
  class State;
  void stop_in_destructor() noexcept;

  Owned<State> state_;
};

/// Call it first in main(). If the program was started as the worker server of a node, or as a cluster's attendant,
/// init() does that work and exits the process. Otherwise it returns, and the program may start clusters of itself.
/// `functions` are the work functions that the nodes can run, by name.
void init(int argc, char** argv, const std::map<std::string, WorkFunction>& functions = {});

}  // namespace miniray
