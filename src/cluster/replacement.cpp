#include "cluster/replacement.hpp"

#include <memory>
#include <mutex>
#include <utility>

#include "cluster/cluster_state.hpp"
#include "miniray/error.hpp"
#include "worker/connect_workers.hpp"

namespace miniray {

struct Replacement::State {
  State(Cluster::State& of_cluster, Worker& dead, std::size_t at)
      : cluster(of_cluster), node(at), origin(of_cluster.drop_worker(dead)) {}

  void connect() {
    cluster.servers_.require_up({node});
    Cluster::State::ConnectPlan plan;
    cluster.add_to_plan(plan, node, origin);
    connection = std::make_unique<WorkerConnection>(std::move(plan.addresses.front()));
  }
  std::optional<Worker> connected() {
    if (!connection) connect();
    std::optional<Worker> worker = connection->advance();
    if (!worker) return std::nullopt;
    connection.reset();
    cluster.register_worker(*worker, node, origin);
    return worker;
  }
  void relaunch() {
    connection.reset();
    cluster.broadcaster_.drop_link(node);
    cluster.servers_.begin_relaunch(node, limits::pool_relaunch_ms / 1000.0);
    relaunching = true;
  }

  Cluster::State& cluster;
  std::size_t node;
  Cluster::State::Origin origin;
  std::unique_ptr<WorkerConnection> connection = {};
  bool relaunching = false;
  bool fresh_server = false;  // this attempt has launched the server again
};

Replacement::Replacement(Cluster& cluster, Worker& dead, std::size_t node) {
  const std::scoped_lock lock(cluster.state_->mutex);
  state_ = std::make_unique<State>(*cluster.state_, dead, node);
}
Replacement::~Replacement() = default;

std::optional<Worker> Replacement::advance() {
  const std::unique_lock lock(state_->cluster.mutex, std::try_to_lock);
  if (!lock) return std::nullopt;  // another thread is calling the cluster, perhaps for long
  if (state_->relaunching) {
    try {
      if (!state_->cluster.servers_.advance_relaunch(state_->node)) return std::nullopt;
    } catch (...) {
      state_->relaunching = false;
      throw;
    }
    state_->relaunching = false;
    state_->fresh_server = true;
  }
  try {
    return state_->connected();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    state_->connection.reset();
    if (std::exchange(state_->fresh_server, false))
      throw ClusterError(1, {{state_->cluster.names()[state_->node], error.what()}});
    state_->relaunch();  // the node's server may have died with the worker
    return std::nullopt;
  }
}

bool Replacement::relaunching() const { return state_->relaunching; }

std::optional<Channel> Replacement::new_link() {
  if (!std::exchange(state_->fresh_server, false)) return std::nullopt;
  const std::unique_lock lock(state_->cluster.mutex, std::try_to_lock);
  if (!lock) return std::nullopt;
  RemoteAddress server = state_->cluster.servers_.address_of(state_->node);
  server.options.connect_timeout_s = limits::new_link_ms / 1000.0;
  try {
    return connect_link(server);
  } catch (const Error&) {  // without a link, large buffers are sent to each worker of the node separately
    return std::nullopt;
  }
}

}  // namespace miniray
