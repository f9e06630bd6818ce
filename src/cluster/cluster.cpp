#include "miniray/cluster.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "cluster/cluster_state.hpp"
#include "cluster/probe.hpp"
#include "cluster/program.hpp"
#include "worker/close_all.hpp"
#include "worker/connect_workers.hpp"
#include "worker/connector.hpp"

namespace miniray {
namespace {

// An sshd that does not forward Unix-domain sockets gives no reason: it closes the connections of the tunnel.
std::string with_tunnel_hint(const std::string& text) {
  const std::size_t at = text.find(server_closed);
  if (at == std::string::npos) return text;
  return text.substr(0, at + server_closed.size()) +
         ". Its sshd probably does not forward Unix-domain sockets: set AllowStreamLocalForwarding yes in its "
         "sshd_config, or do not use tunnel";
}

}  // namespace

Cluster::State::State(std::vector<NodeConfig> nodes, ClusterOptions given)
    : options(std::move(given)),
      nodes_(std::move(nodes)),
      names_(miniray::node_names(nodes_)),
      servers_(nodes_, names_, options),
      labels_used_(nodes_.size(), 0) {
  if (nodes_.empty()) throw UsageError("a cluster needs at least one node, and nodes is empty");
  for (const NodeConfig& node : nodes_) check(node);
  if (!(options.unreachable_s >= limits::unreachable_min_ms / 1000.0 &&
        options.unreachable_s <= limits::unreachable_max_ms / 1000.0))
    throw UsageError("unreachable_s is a number of seconds, 1 at least, not " + number_text(options.unreachable_s));
  if (options.output.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.output, error);
  if (error) throw UsageError("cannot make the folder " + options.output + " (output): " + error.message());
}

void Cluster::State::launch(const std::string& work_fn) {
  if (!options.program.command) options.program = this_program();
  if (options.attendant.empty()) options.attendant = this_programs_attendant();
  servers_.launch(work_fn);
  labels_used_.assign(nodes_.size(), 0);
}

void Cluster::State::require_node(std::size_t node) const {
  if (node >= nodes_.size())
    throw UsageError(
        "the cluster has no node " + std::to_string(node) +
        (nodes_.size() == 1 ? "; its only node is 0" : "; its nodes are 0 to " + std::to_string(nodes_.size() - 1)));
}

std::size_t Cluster::State::position_of(const std::string& node) const {
  const auto found = std::ranges::find(names_, node);
  if (found == names_.end()) {
    std::string known;
    for (const std::string& name : names_) known += (known.empty() ? "" : ", ") + name;
    throw UsageError("the cluster has no node \"" + node + "\"; its nodes are " + known);
  }
  return static_cast<std::size_t>(found - names_.begin());
}

void Cluster::State::relaunch(std::size_t node, std::optional<double> timeout_s) {
  require_node(node);
  broadcaster_.drop_link(node);  // it leads to the old server
  servers_.relaunch(node, timeout_s.value_or(options.start_timeout_s));
}

std::vector<std::size_t> Cluster::State::chosen(const std::vector<std::size_t>& positions) const {
  std::set<std::size_t> seen;
  for (const std::size_t node : positions) {
    require_node(node);
    if (!seen.insert(node).second) throw UsageError("nodes names " + names_[node] + " twice; name each node once");
  }
  if (!positions.empty()) return positions;
  std::vector<std::size_t> all(nodes_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A probe asks the driver on each node whose hardware is not known yet. The probes end with this function.
void Cluster::State::learn_machines(const std::vector<std::size_t>& nodes) {
  std::vector<std::size_t> unknown;
  for (const std::size_t node : nodes)
    if (!machines_.contains(node)) unknown.push_back(node);
  std::vector<Worker> probes = connect_probes(unknown);
  for (Worker& probe : probes) probe.send({{"cmd", "machine"}});
  for (std::size_t i = 0; i < probes.size(); ++i)
    machines_[unknown[i]] = machine_from(probes[i].recv({{}, options.start_timeout_s}));
}

void Cluster::State::add_to_plan(ConnectPlan& plan, std::size_t node, const Origin& origin) {
  const auto before = static_cast<std::size_t>(std::ranges::count(plan.nodes, node));
  RemoteOptions& remote = plan.addresses.emplace_back(servers_.address_of(node)).options;
  remote.work_fn = origin.work_fn;
  const std::size_t number = static_cast<std::size_t>(labels_used_[node]) + before;
  remote.label = names_[node] + "/" + std::to_string(number);
  servers_.expect_workers(node, static_cast<int>(number) + 1);
  remote.worker.name = remote.label + (origin.work_fn.empty() ? "" : ", " + origin.work_fn);
  remote.environment = origin.place.environment;
  if (node == origin.home) remote.cpus = origin.place.cpus;  // on another node, other CPUs are next to the GPUs
  plan.nodes.push_back(node);
  plan.origins.push_back(origin);
}

Cluster::State::ConnectPlan Cluster::State::plan_workers(const std::string& work_fn, const StartOptions& start) {
  ConnectPlan plan;
  std::string without_gpu;
  const std::vector<std::size_t> nodes = chosen(start.nodes);
  servers_.finish_relaunches(nodes);
  const auto gpus_on = [&](std::size_t node) { return start.gpus_per_worker.value_or(nodes_[node].gpus_per_worker); };
  std::vector<std::size_t> with_gpus;
  for (const std::size_t node : nodes) {
    check_gpus_per_worker(gpus_on(node), names_[node]);
    if (gpus_on(node) > 0 || !start.gpus.empty()) with_gpus.push_back(node);
  }
  // To ask for the hardware costs a process on the node, so a start without GPUs does not ask.
  learn_machines(with_gpus);
  for (const std::size_t node : nodes) {
    const int workers = start.num_workers.value_or(nodes_[node].num_workers);
    if (workers < 1) throw UsageError("num_workers is 1 or more, not " + std::to_string(workers));
    std::vector<WorkerPlace> places(static_cast<std::size_t>(workers));
    if (std::ranges::find(with_gpus, node) != with_gpus.end()) {
      places = plan_gpus(machines_[node], names_[node], workers, gpus_on(node), start);
      if (machines_[node].gpus.empty()) without_gpu += (without_gpu.empty() ? "" : ", ") + names_[node];
    }
    for (const WorkerPlace& place : places) add_to_plan(plan, node, {work_fn, node, place});
  }
  if (!without_gpu.empty() && options.progress && !std::exchange(warned_of_no_gpu_, true))
    log(LogLevel::warning, "there is no GPU on " + without_gpu + "; the workers there run without one");
  return plan;
}

std::vector<Worker> Cluster::State::connect(const ConnectPlan& plan) {
  std::vector<ConnectFailure> failures;
  std::vector<std::unique_ptr<Worker::State>> states = connect_workers(plan.addresses, failures);
  if (!failures.empty()) {
    // One failure is reported for each node, because the workers of a node fail for the same reason.
    std::vector<ClusterError::Failure> told;
    for (const ConnectFailure& failure : failures) {
      const std::size_t at = plan.nodes[failure.address];
      if (std::ranges::find(told, names_[at], &ClusterError::Failure::node) == told.end())
        told.push_back(
            {names_[at], servers_.tunnelled(at) ? with_tunnel_hint(text_of(failure.error)) : text_of(failure.error)});
    }
    throw ClusterError(std::set<std::size_t>(plan.nodes.begin(), plan.nodes.end()).size(), std::move(told));
  }
  std::vector<Worker> workers;
  workers.reserve(states.size());
  for (std::unique_ptr<Worker::State>& state : states) workers.push_back(assemble(std::move(state)));
  return workers;
}

std::vector<Worker> Cluster::State::connect_and_register(ConnectPlan plan) {
  std::vector<Worker> workers = connect(plan);
  for (std::size_t i = 0; i < workers.size(); ++i)
    register_worker(workers[i], plan.nodes[i], std::move(plan.origins[i]));
  return workers;
}

void Cluster::State::register_worker(Worker& worker, std::size_t node, Origin origin) {
  broadcaster_.add(worker, node);
  origins_[&worker.channel()] = std::move(origin);
  ++labels_used_[node];
}

std::vector<Worker> Cluster::State::connect(const std::string& work_fn, const StartOptions& start) {
  return connect_and_register(plan_workers(work_fn, start));
}

std::vector<Worker> Cluster::State::connect_probes(const std::vector<std::size_t>& nodes) {
  servers_.finish_relaunches(nodes);
  ConnectPlan plan;
  for (const std::size_t i : nodes) {
    RemoteOptions& remote = plan.addresses.emplace_back(servers_.address_of(i)).options;
    remote.work_fn = probe_function;
    remote.label = names_[i] + "/probe";
    remote.worker.name = remote.label;
    plan.nodes.push_back(i);
  }
  return connect(plan);
}

Worker Cluster::State::replace(Worker& worker, std::optional<std::size_t> node) {
  const std::size_t at = node.value_or(node_of(worker));
  require_node(at);
  servers_.finish_relaunches({at});
  ConnectPlan plan;
  add_to_plan(plan, at, origins_.at(&worker.channel()));
  std::vector<Worker> made = connect_and_register(std::move(plan));
  (void)drop_worker(worker);  // last, so that a replacement that failed can be tried again
  return std::move(made.front());
}

Cluster::State::Origin Cluster::State::drop_worker(Worker& worker) {
  auto origin = origins_.extract(&worker.channel());
  if (!origin) throw UsageError(worker.name() + " is not a worker of this cluster, or the cluster was stopped");
  broadcaster_.drop(worker);
  return std::move(origin.mapped());
}

std::size_t Cluster::State::node_of(Worker& worker) const {
  const std::optional<std::size_t> node = broadcaster_.node_of(worker);
  if (!node) throw UsageError(worker.name() + " is not a worker of this cluster");
  return *node;
}

Channel Cluster::State::open_link(std::size_t node) { return connect_link(servers_.address_of(node)); }

void Cluster::State::broadcast(std::span<Worker* const> workers, const Message& message) {
  broadcaster_.send(workers, message, [&](std::size_t node) { return servers_.address_of(node); });
}

std::vector<Worker*> Cluster::State::all_workers() {
  std::vector<Worker*> all;
  for (std::vector<Worker>& workers : started)
    for (Worker& worker : workers)
      if (worker.valid()) all.push_back(&worker);
  return all;
}

// A server that hangs cannot report that its workers have ended. So the wait for the workers has a limit, and the
// servers are ended even if some workers did not report.
void Cluster::State::stop(std::span<Worker* const> others, Closing how) {
  std::vector<Worker*> workers = all_workers();
  workers.insert(workers.end(), others.begin(), others.end());
  CloseOptions closing;
  closing.how = how;
  closing.news_within_ms = limits::exit_wait_ms;
  closing.keep_unconfirmed = true;
  Closer closer(workers, closing);
  std::exception_ptr interrupt;
  try {
    closer.run();
  } catch (...) {
    interrupt = std::current_exception();
  }
  broadcaster_ = {};
  origins_.clear();
  machines_.clear();
  ports_given.clear();
  try {
    servers_.finish(interrupt || how != Closing::finish);
  } catch (...) {  // NodeServers has dropped its attendants by now, which kills the servers
    if (!interrupt) interrupt = std::current_exception();
  }
  closer.drop_rest();  // the workers that did not report have ended with their servers
  started.clear();
  if (interrupt) std::rethrow_exception(interrupt);
}

Cluster::Cluster(std::vector<NodeConfig> nodes, ClusterOptions options)
    : state_(std::make_unique<State>(std::move(nodes), std::move(options))) {}
Cluster::Cluster(Cluster&&) noexcept = default;
Cluster& Cluster::operator=(Cluster&& other) noexcept {
  if (this == &other) return *this;
  stop_in_destructor();
  state_ = std::move(other.state_);
  return *this;
}

Cluster::~Cluster() { stop_in_destructor(); }

void Cluster::stop_in_destructor() noexcept {
  if (!state_) return;
  try {
    state_->stop({}, Closing::finish);
  } catch (...) {  // an interrupt, which stop() throws after everything has ended
  }
}

void Cluster::launch_servers(const std::string& work_fn) {
  const std::scoped_lock lock(state_->mutex);
  state_->launch(work_fn);
}
std::vector<Worker> Cluster::connect_to_servers(const std::string& work_fn, const StartOptions& options) {
  const std::scoped_lock lock(state_->mutex);
  return state_->connect(work_fn, options);
}
std::vector<Worker> Cluster::connect_probes(const std::vector<std::size_t>& nodes) {
  const std::scoped_lock lock(state_->mutex);
  return state_->connect_probes(nodes);
}
std::size_t Cluster::node_of(Worker& worker) const {
  const std::scoped_lock lock(state_->mutex);
  return state_->node_of(worker);
}
const std::vector<NodeConfig>& Cluster::nodes() const { return state_->nodes(); }
const std::vector<std::string>& Cluster::node_names() const { return state_->names(); }
std::size_t Cluster::position_of(const std::string& node) const { return state_->position_of(node); }
void Cluster::relaunch(std::size_t node, Timeout timeout_s) {
  const std::scoped_lock lock(state_->mutex);
  state_->relaunch(node, timeout_s);
}
Worker Cluster::replace(Worker& worker, std::optional<std::size_t> node) {
  const std::scoped_lock lock(state_->mutex);
  return state_->replace(worker, node);
}
Channel Cluster::open_link(std::size_t node) {
  const std::scoped_lock lock(state_->mutex);
  return state_->open_link(node);
}
std::set<int>& Cluster::ports_given() { return state_->ports_given; }

std::span<Worker> Cluster::start(const std::string& work_fn, const StartOptions& options) {
  const std::scoped_lock lock(state_->mutex);
  const bool first = !state_->launched();
  if (first) state_->launch(work_fn);
  try {
    // A list, because the span that is returned must stay valid when start() is called again.
    return state_->started.emplace_back(state_->connect(work_fn, options));
  } catch (...) {
    if (first) state_->stop({}, Closing::interrupt);  // leaves everything as it was before the call
    throw;
  }
}

void Cluster::broadcast(const Value& message) {
  broadcast(state_->all_workers(), encode(message, state_->options.worker.codec));
}
void Cluster::broadcast(std::span<Worker* const> workers, const Message& message) {
  const std::scoped_lock lock(state_->mutex);
  state_->broadcast(workers, message);
}

std::vector<Value> Cluster::gather(const ReceiveOptions& options) {
  std::vector<Value> values;
  for (const Message& message : gather(state_->all_workers(), options)) values.push_back(decode(message));
  return values;
}

void Cluster::stop(std::span<Worker* const> workers, Closing how) {
  const std::scoped_lock lock(state_->mutex);
  state_->stop(workers, how);
}
std::vector<Cluster::Server> Cluster::servers() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->servers();
}

}  // namespace miniray
