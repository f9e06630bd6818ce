// The implementation of Cluster, which Replacement uses too. Cluster locks `mutex` around every call.
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cluster/broadcast.hpp"
#include "cluster/node_plan.hpp"
#include "cluster/replacement.hpp"
#include "launch/node_servers.hpp"
#include "miniray/cluster.hpp"

namespace miniray {

class Cluster::State {
 public:
  static constexpr const char* class_name = "Cluster";
  State(std::vector<NodeConfig> nodes, ClusterOptions options);
  void launch(const std::string& work_fn);
  [[nodiscard]] bool launched() const { return servers_.launched(); }
  void relaunch(std::size_t node, std::optional<double> timeout_s);
  [[nodiscard]] std::vector<Worker> connect(const std::string& work_fn, const StartOptions& options);
  [[nodiscard]] std::vector<Worker> connect_probes(const std::vector<std::size_t>& nodes);
  [[nodiscard]] Worker replace(Worker& worker, std::optional<std::size_t> node);
  [[nodiscard]] std::size_t node_of(Worker& worker) const;
  [[nodiscard]] std::size_t position_of(const std::string& node) const;
  void broadcast(std::span<Worker* const> workers, const Message& message);
  [[nodiscard]] Channel open_link(std::size_t node);
  void stop(std::span<Worker* const> others, Closing how);
  [[nodiscard]] std::vector<Worker*> all_workers();
  [[nodiscard]] const std::vector<Server>& servers() const { return servers_.servers(); }

  [[nodiscard]] const std::vector<NodeConfig>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  ClusterOptions options;
  std::mutex mutex;  // a pool replaces workers in its own thread, at the same time as the user's calls
  std::list<std::vector<Worker>> started;
  std::set<int> ports_given;

 private:
  friend class Replacement;
  friend struct Replacement::State;
  // What a worker was started with, so that another can be started in its place.
  struct Origin {
    std::string work_fn;
    std::size_t home;  // the node for which `place` was planned
    WorkerPlace place;
  };
  // The workers to start: for each one the address, the node, and its origin (probes have none).
  struct ConnectPlan {
    std::vector<RemoteAddress> addresses;
    std::vector<std::size_t> nodes;
    std::vector<Origin> origins;
  };
  void require_node(std::size_t node) const;
  [[nodiscard]] std::vector<std::size_t> chosen(const std::vector<std::size_t>& positions) const;
  void add_to_plan(ConnectPlan& plan, std::size_t node, const Origin& origin);
  [[nodiscard]] ConnectPlan plan_workers(const std::string& work_fn, const StartOptions& start);
  [[nodiscard]] std::vector<Worker> connect(const ConnectPlan& plan);
  [[nodiscard]] std::vector<Worker> connect_and_register(ConnectPlan plan);
  void register_worker(Worker& worker, std::size_t node, Origin origin);
  [[nodiscard]] Origin drop_worker(Worker& worker);
  void learn_machines(const std::vector<std::size_t>& nodes);

  std::vector<NodeConfig> nodes_;
  std::vector<std::string> names_;
  NodeServers servers_;
  std::vector<int> labels_used_;              // the number of workers that each node has had, for their labels
  std::map<std::size_t, Machine> machines_;   // the hardware of the nodes that have been asked
  std::map<const Channel*, Origin> origins_;  // has the same workers as broadcaster_
  bool warned_of_no_gpu_ = false;
  Broadcaster broadcaster_;
};

}  // namespace miniray
