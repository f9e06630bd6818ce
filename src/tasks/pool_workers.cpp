#include "tasks/pool_workers.hpp"

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include "base/system.hpp"
#include "cluster/probe.hpp"
#include "miniray/hardware.hpp"

namespace miniray {
namespace {

constexpr const char* this_machine = "localhost";

std::vector<std::string> gpu_names(const Machine& machine) {
  std::vector<std::string> names;
  for (const Gpu& gpu : machine.gpus)
    names.push_back(gpu.visible_as.empty() ? std::to_string(gpu.index) : gpu.visible_as);
  return names;
}

// Without a number of GPUs among the options they are those that `discover` finds.
template <class Discover>
PoolNode make_node(const std::string& name, std::size_t workers, const PoolOptions& options, Discover discover) {
  PoolNode node{.name = name, .cpus = options.num_cpus.value_or(static_cast<double>(workers))};
  if (options.num_gpus)
    for (std::size_t i = 0; i < *options.num_gpus; ++i) node.gpu_names.push_back(std::to_string(i));
  else
    node.gpu_names = discover();
  node.custom = options.resources;
  if (const auto own = options.node_resources.find(name); own != options.node_resources.end())
    for (const auto& [resource, amount] : own->second) node.custom[resource] = amount;
  return node;
}

class ForkedWorkers : public PoolWorkers {
 public:
  ForkedWorkers(int count, const PoolOptions& options) : options_(options.worker) {
    if (count < 1) throw UsageError("a pool has 1 worker or more, not " + std::to_string(count));
    // A wait may spin where that takes no core from a task.
    if (!options_.spin_us && system::usable_cpus() <= count + 1) options_.spin_us = 0;
    nodes_.push_back(make_node(this_machine, static_cast<std::size_t>(count), options,
                               [] { return gpu_names(discover_machine()); }));
    for (int i = 0; i < count; ++i) first_.push_back(fork_one());
  }
  PlacedWorker replace(std::size_t /*node*/, Worker& /*gone*/) override { return fork_one(); }

 private:
  [[nodiscard]] PlacedWorker fork_one() const { return {0, std::make_shared<Worker>(serve_calls, options_), true}; }

  WorkerOptions options_;
};

// "worker 1234 at node1:10000 (name)": empty if it is a process of this machine.
std::string host_of(const Worker& worker) {
  constexpr std::string_view title = "worker ", place = " at ";
  std::string_view rest = worker.name();
  if (!rest.starts_with(title)) return {};
  rest.remove_prefix(title.size());
  while (!rest.empty() && std::isdigit(static_cast<unsigned char>(rest.front())) != 0) rest.remove_prefix(1);
  if (!rest.starts_with(place)) return {};
  rest.remove_prefix(place.size());
  rest = rest.substr(0, rest.find(" ("));
  return std::string(rest.substr(0, rest.rfind(':')));
}

class GivenWorkers : public PoolWorkers {
 public:
  GivenWorkers(std::vector<Worker> workers, const PoolOptions& options) : replace_(options.replace) {
    if (workers.empty()) throw UsageError("a pool needs at least one worker");
    std::vector<std::string> hosts;
    for (Worker& worker : workers) {
      const std::string host = host_of(worker);
      const std::string name = host.empty() ? this_machine : host;
      const auto known = std::ranges::find(hosts, name);
      const auto node = static_cast<std::size_t>(known - hosts.begin());
      if (known == hosts.end()) hosts.push_back(name);
      first_.push_back({node, std::make_shared<Worker>(std::move(worker)), host.empty()});
    }
    for (std::size_t node = 0; node < hosts.size(); ++node) {
      const auto there = std::ranges::count(first_, node, &PlacedWorker::node);
      nodes_.push_back(
          make_node(hosts[node], static_cast<std::size_t>(there), options, [] { return std::vector<std::string>(); }));
    }
  }
  std::string why_not_replaced() const override {
    return replace_ ? "" : "the pool was given its workers, and PoolOptions::replace is not set";
  }
  PlacedWorker replace(std::size_t node, Worker& gone) override {
    auto made = std::make_shared<Worker>(replace_(gone));
    const bool here = host_of(*made).empty();
    return {node, std::move(made), here};
  }

 private:
  std::function<Worker(Worker&)> replace_;
};

class ClusterWorkers : public PoolWorkers {
 public:
  ClusterWorkers(Cluster& cluster, const PoolOptions& options) : cluster_(cluster) {
    if (cluster.servers().empty()) cluster.launch_servers(options.work_fn);
    for (Worker& worker : cluster.connect_to_servers(options.work_fn, options.start)) {
      const std::size_t node = cluster.node_of(worker);
      first_.push_back({node, std::make_shared<Worker>(std::move(worker)), false});
    }
    std::vector<std::size_t> positions;
    if (!options.num_gpus)
      for (std::size_t node = 0; node < cluster.nodes().size(); ++node) positions.push_back(node);
    std::vector<Worker> probes = cluster.connect_probes(positions);
    for (Worker& probe : probes) probe.send({{"cmd", "machine"}});
    for (std::size_t node = 0; node < cluster.nodes().size(); ++node) {
      const auto there = std::ranges::count(first_, node, &PlacedWorker::node);
      nodes_.push_back(make_node(cluster.node_names()[node], static_cast<std::size_t>(there), options,
                                 [&] { return gpu_names(machine_from(probes[node].recv())); }));
      unlinked_.insert(node);
    }
  }
  PlacedWorker replace(std::size_t node, Worker& gone) override {
    try {
      return take_place(node, gone);
    } catch (const ClusterError&) {  // its server may be gone too
      cluster_.relaunch(node, limits::pool_relaunch_ms / 1000.0);
      unlinked_.insert(node);
    }
    return take_place(node, gone);
  }
  std::optional<Channel> new_link(std::size_t node) override {
    if (unlinked_.erase(node) == 0) return std::nullopt;
    try {
      return cluster_.open_link(node);
    } catch (const Error&) {  // it can be done without
      return std::nullopt;
    }
  }

 private:
  [[nodiscard]] PlacedWorker take_place(std::size_t node, Worker& gone) {
    return {node, std::make_shared<Worker>(cluster_.replace(gone, node)), false};
  }

  Cluster& cluster_;
  std::set<std::size_t> unlinked_;
};

}  // namespace

std::unique_ptr<PoolWorkers> forked_workers(int count, const PoolOptions& options) {
  return std::make_unique<ForkedWorkers>(count, options);
}
std::unique_ptr<PoolWorkers> given_workers(std::vector<Worker> workers, const PoolOptions& options) {
  return std::make_unique<GivenWorkers>(std::move(workers), options);
}
std::unique_ptr<PoolWorkers> cluster_workers(Cluster& cluster, const PoolOptions& options) {
  return std::make_unique<ClusterWorkers>(cluster, options);
}

}  // namespace miniray
