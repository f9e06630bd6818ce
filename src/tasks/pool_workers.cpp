// The nodes and workers that a C++ pool begins with.
#include <algorithm>
#include <utility>

#include "base/system.hpp"
#include "cluster/probe.hpp"
#include "miniray/hardware.hpp"
#include "tasks/pool_driver.hpp"

namespace miniray {
namespace {

constexpr const char* this_machine = "localhost";

std::vector<std::string> gpu_names(const Machine& machine) {
  std::vector<std::string> names;
  for (const Gpu& gpu : machine.gpus)
    names.push_back(gpu.visible_as.empty() ? std::to_string(gpu.index) : gpu.visible_as);
  return names;
}

// If the options do not say how many GPUs the node has, `discover` finds them.
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

std::vector<std::string> no_gpus() { return {}; }

}  // namespace

Crew forked_crew(int count, const PoolOptions& options) {
  if (count < 1) throw UsageError("a pool has 1 worker or more, not " + std::to_string(count));
  WorkerOptions worker = options.worker;
  // A wait may spin only where that takes no core from a task.
  if (!worker.spin_us && system::usable_cpus() <= count + 1) worker.spin_us = 0;
  Crew crew;
  crew.nodes.push_back(
      make_node(this_machine, static_cast<std::size_t>(count), options, [] { return gpu_names(discover_machine()); }));
  for (int i = 0; i < count; ++i) crew.workers.push_back({0, std::make_shared<Worker>(serve_calls, worker)});
  crew.source = program_source();
  crew.make = [worker](Worker& /*gone*/) { return Worker(serve_calls, worker); };
  return crew;
}

Crew given_crew(std::vector<Worker> workers, const PoolOptions& options) {
  if (workers.empty()) throw UsageError("a pool needs at least one worker");
  Crew crew;
  std::vector<std::string> hosts;
  for (Worker& worker : workers) {
    const std::string host = host_of(worker);
    const std::string name = host.empty() ? this_machine : host;
    const auto known = std::ranges::find(hosts, name);
    const auto node = static_cast<std::size_t>(known - hosts.begin());
    if (known == hosts.end()) hosts.push_back(name);
    crew.workers.push_back({node, std::make_shared<Worker>(std::move(worker))});
  }
  for (std::size_t node = 0; node < hosts.size(); ++node) {
    const auto there = std::ranges::count(crew.workers, node, &PlacedWorker::node);
    crew.nodes.push_back(make_node(hosts[node], static_cast<std::size_t>(there), options, no_gpus));
  }
  crew.source =
      program_source(options.replace ? "" : "the pool was given its workers, and PoolOptions::replace is not set");
  crew.make = options.replace;
  return crew;
}

Crew cluster_crew(Cluster& cluster, const PoolOptions& options) {
  if (cluster.servers().empty()) cluster.launch_servers(options.work_fn);
  Crew crew;
  for (Worker& worker : cluster.connect_to_servers(options.work_fn, options.start)) {
    const std::size_t node = cluster.node_of(worker);
    crew.workers.push_back({node, std::make_shared<Worker>(std::move(worker))});
  }
  std::vector<std::size_t> positions;
  if (!options.num_gpus)
    for (std::size_t node = 0; node < cluster.nodes().size(); ++node) positions.push_back(node);
  std::vector<Worker> probes = cluster.connect_probes(positions);
  for (Worker& probe : probes) probe.send({{"cmd", "machine"}});
  for (std::size_t node = 0; node < cluster.nodes().size(); ++node) {
    const auto there = std::ranges::count(crew.workers, node, &PlacedWorker::node);
    crew.nodes.push_back(make_node(cluster.node_names()[node], static_cast<std::size_t>(there), options,
                                   [&] { return gpu_names(machine_from(probes[node].recv())); }));
    try {
      crew.links.emplace(node, cluster.open_link(node));
    } catch (const Error&) {  // then each worker of the node gets its own copies of large arguments
    }
  }
  crew.source = cluster_source(cluster);
  return crew;
}

}  // namespace miniray
