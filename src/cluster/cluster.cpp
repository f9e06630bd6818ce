#include "miniray/cluster.hpp"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <numeric>
#include <sstream>

#include "base/clock.hpp"
#include "base/error_text.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "cluster/attendant.hpp"
#include "cluster/broadcast.hpp"
#include "cluster/code_bundle.hpp"
#include "cluster/gpu_plan.hpp"
#include "cluster/launch_command.hpp"
#include "cluster/node_config.hpp"
#include "cluster/node_launch.hpp"
#include "cluster/private_folder.hpp"
#include "cluster/probe.hpp"
#include "cluster/program.hpp"
#include "cluster/progress.hpp"
#include "worker/connect_workers.hpp"

namespace miniray {
namespace {

// Once a node has failed, the others have this long to fail too, and to be named; ssh gives up before.
constexpr int failing_together_ms = limits::ssh_connect_timeout_ms + 2000;
constexpr int failed_stop_ms = 1500;  // what a launch that failed waits for the nodes that came up

// Those that have not ended when the grace, which they share, is over.
std::vector<Worker*> still_running(const std::vector<Worker*>& workers, int grace_ms) {
  std::vector<Worker*> late;
  const std::int64_t end_ns = now_ns() + grace_ms * 1'000'000LL;
  for (Worker* worker : workers) {
    try {
      (void)worker->wait(std::max<double>(0, static_cast<double>(end_ns - now_ns()) / 1e9));
    } catch (const TimeoutError&) {
      late.push_back(worker);
    } catch (const Error&) {  // for close() to tell
    }
  }
  return late;
}

// An sshd that forwards nothing only closes what came through the tunnel.
std::string with_tunnel_hint(const std::string& text) {
  constexpr std::string_view closed = "it closed the connection";
  const std::size_t at = text.find(closed);
  if (at == std::string::npos) return text;
  return text.substr(0, at + closed.size()) +
         ". Its sshd probably does not forward Unix-domain sockets: set AllowStreamLocalForwarding yes in its "
         "sshd_config, or do without tunnel";
}

}  // namespace

ClusterError::ClusterError(std::size_t nodes, std::vector<Failure> failures)
    : Error([&] {
        std::string text = std::to_string(failures.size()) + " of " + std::to_string(nodes) +
                           (nodes == 1 ? " node" : " nodes") + " failed, and nothing of this start was left running.";
        for (const Failure& failure : failures) text += "\n\n" + failure.node + ": " + failure.why;
        return text;
      }()),
      failures_(std::move(failures)) {}

class Cluster::State {
 public:
  State(std::vector<NodeConfig> nodes, ClusterOptions options);
  void launch(const std::string& work_fn);
  [[nodiscard]] bool launched() const { return attendant_ != nullptr; }
  [[nodiscard]] std::vector<Worker> connect(const std::string& work_fn, const StartOptions& options);
  [[nodiscard]] std::vector<Worker> connect_probes(const std::vector<std::size_t>& nodes);
  [[nodiscard]] std::size_t node_of(Worker& worker) const;
  void broadcast(std::span<Worker* const> workers, const Message& message);
  void stop(std::span<Worker* const> others);
  [[nodiscard]] std::vector<Worker*> all_workers();
  [[nodiscard]] const std::vector<Server>& servers() const { return servers_; }

  ClusterOptions options;
  std::list<std::vector<Worker>> started;
  std::set<int> ports_given;

 private:
  [[nodiscard]] std::vector<Attendant::Node> commands(const ServerProgram& program, const std::string& executable);
  [[nodiscard]] Value config_of(std::size_t node, const ServerProgram& program, const CodeBundle& code,
                                const std::string& work_fn) const;
  void bring_up(std::vector<NodeLaunch>& launches);
  [[nodiscard]] bool tunnelled(std::size_t node) const { return options.tunnel && !is_local(nodes_[node].host); }
  [[nodiscard]] Tunnel tunnel_of(std::size_t node) const;
  [[nodiscard]] Server server_of(std::size_t node, const Value& ready) const;
  void take_over(const std::vector<NodeLaunch>& launches);
  [[nodiscard]] RemoteAddress server_address(std::size_t node) const;
  // Where the workers shall be, and on which node each is.
  struct Wanted {
    std::vector<RemoteAddress> addresses;
    std::vector<std::size_t> nodes;
  };
  [[nodiscard]] Wanted wanted(const std::string& work_fn, const StartOptions& start);
  [[nodiscard]] std::vector<Worker> connect(const Wanted& wanted);
  [[nodiscard]] const Machine& machine_of(std::size_t node);

  std::vector<NodeConfig> nodes_;
  std::vector<std::string> names_;
  int unreachable_ms_;
  Key key_;
  std::string tunnel_token_;
  std::unique_ptr<PrivateFolder> folder_;
  std::unique_ptr<Attendant> attendant_;
  std::vector<Server> servers_;
  std::vector<int> labelled_;      // how many workers each node has had
  std::vector<Machine> machines_;  // of all nodes, once one was asked for
  bool told_of_no_gpu_ = false;
  Broadcaster broadcaster_;
};

Cluster::State::State(std::vector<NodeConfig> nodes, ClusterOptions given)
    : options(std::move(given)), nodes_(std::move(nodes)), names_(node_names(nodes_)) {
  if (nodes_.empty()) throw UsageError("a cluster needs at least one node");
  for (const NodeConfig& node : nodes_) check(node);
  if (!(options.unreachable_s >= 1 && options.unreachable_s <= 1e6))
    throw UsageError("unreachable_s is a number of seconds, 1 at least, not " + std::to_string(options.unreachable_s));
  unreachable_ms_ = static_cast<int>(options.unreachable_s * 1000);
  if (options.output.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.output, error);
  if (error) throw UsageError("cannot make the folder " + options.output + " for output: " + error.message());
}

Tunnel Cluster::State::tunnel_of(std::size_t node) const {
  if (!tunnelled(node)) return {};
  return {(folder_->path() / std::to_string(node)).string(),
          "/tmp/miniray-" + tunnel_token_ + "-" + std::to_string(node) + "/socket"};
}

std::vector<Attendant::Node> Cluster::State::commands(const ServerProgram& program, const std::string& executable) {
  std::string executable_hash;
  const std::uint64_t executable_bytes = executable.size();
  if (!program.executable.empty()) {
    executable_hash = content_hash(executable);
    const bool travels = options.ship_code && !std::ranges::all_of(nodes_, is_local, &NodeConfig::host);
    if (travels && executable_bytes > limits::code_bytes_max)
      throw UsageError("the program " + program.executable + " has " + std::to_string(executable_bytes / limits::mib) +
                       " MiB, and what goes along to the nodes may have " +
                       std::to_string(limits::code_bytes_max / limits::mib) +
                       " (code_bytes_max). Strip it, or set ship_code to false and put it there, at the same path");
  }
  std::vector<Attendant::Node> made;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    std::string command = program.command(nodes_[i]);
    if (!executable_hash.empty()) {
      const bool ship = options.ship_code && !is_local(nodes_[i].host);
      if (ship)
        command = with_shipped_program(command, executable_hash, executable_bytes);
      else
        command.insert(0, "program=" + quote_for_shell(program.executable) + "; ");
    }
    made.push_back({names_[i], launch_command(nodes_[i], command, tunnel_of(i), unreachable_ms_)});
  }
  return made;
}

Value Cluster::State::config_of(std::size_t node, const ServerProgram& program, const CodeBundle& code,
                                const std::string& work_fn) const {
  const NodeConfig& config = nodes_[node];
  Map environment;
  for (const auto& [name, value] : config.env) environment.emplace_back(name, value);
  return {{"key", key_.hex()},
          {"port", config.base_port},
          {"local", is_local(config.host)},
          {"socket", tunnel_of(node).there},
          {"environment", Value(std::move(environment))},
          {"workdir", config.workdir},
          {"unreachable_ms", unreachable_ms_},
          {"code", code.empty() ? Value() : code.manifest()},
          {"setup", program.setup},
          {"work_fn", work_fn}};
}

void Cluster::State::launch(const std::string& work_fn) {
  if (launched()) throw UsageError("the cluster's servers are up already; stop() ends them");
  const ServerProgram program = options.program.command ? options.program : this_program();
  const CodeBundle code = options.ship_code ? CodeBundle(program.files) : CodeBundle();
  key_ = Key::random();
  tunnel_token_ = random_hex(8);
  if (options.tunnel) folder_ = std::make_unique<PrivateFolder>();
  const auto executable =
      std::make_shared<const std::string>(program.executable.empty() ? std::string() : read_file(program.executable));
  std::vector<NodeLaunch> launches;
  launches.reserve(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    launches.emplace_back(nodes_[i], config_of(i, program, code, work_fn), code, executable);
  attendant_ = std::make_unique<Attendant>(
      commands(program, *executable),
      Attendant::Options{options.output, unreachable_ms_,
                         options.attendant.empty() ? this_programs_attendant() : options.attendant});
  try {
    bring_up(launches);
    take_over(launches);
  } catch (...) {
    (void)attendant_->finish(Deadline::in_ms(failed_stop_ms), {});
    attendant_.reset();
    folder_.reset();
    throw;
  }
}

// All nodes at once: each goes on whenever it can, and a slow one keeps nobody waiting but the caller.
void Cluster::State::bring_up(std::vector<NodeLaunch>& launches) {
  const Deadline deadline = Deadline::in_seconds(options.start_timeout_s);
  std::optional<Deadline> failing_until;
  Progress progress(options.progress);
  Deadline heartbeat = Deadline::in_ms(unreachable_ms_ / 4);
  std::vector<Attendant::Streams>& streams = attendant_->streams();
  while (!std::ranges::all_of(launches, &NodeLaunch::settled) && !(failing_until && failing_until->passed())) {
    std::vector<pollfd> watched{{attendant_->fileno(), POLLIN, 0}};
    std::vector<Progress::Entry> shown;
    for (std::size_t i = 0; i < launches.size(); ++i) {
      shown.push_back({names_[i], launches[i].stage_name(), launches[i].settled()});
      if (launches[i].settled()) continue;
      LineStream& talk = streams[i].talk;
      const int writing = talk.unwritten_bytes() > 0 ? POLLOUT : 0;
      watched.push_back({talk.ended() ? -1 : talk.input_fileno(), static_cast<short>(POLLIN | writing), 0});
      watched.push_back({streams[i].errors.ended() ? -1 : streams[i].errors.input_fileno(), POLLIN, 0});
    }
    progress.show(shown);
    (void)system::poll_many(watched, std::min(200, deadline.poll_ms(limits::wait_slice_ms)));
    if (options.worker.on_interrupt) options.worker.on_interrupt();
    for (std::size_t i = 0; i < launches.size(); ++i) launches[i].advance(streams[i]);
    for (const auto& [node, exit_code] : attendant_->exit_codes())
      launches[node].command_ended(streams[node], exit_code);
    if (!failing_until && std::ranges::find(launches, NodeLaunch::Stage::failed, &NodeLaunch::stage) != launches.end())
      failing_until = Deadline::in_ms(failing_together_ms);
    if (deadline.passed())
      for (NodeLaunch& launch : launches)
        launch.give_up("it was not ready within " + std::to_string(static_cast<int>(options.start_timeout_s)) +
                       " s (start_timeout_s); it was " + launch.stage_name() +
                       (launch.complaints().empty() ? "" : ", and said:\n" + launch.complaints()));
    if (!heartbeat.passed()) continue;
    heartbeat = Deadline::in_ms(unreachable_ms_ / 4);
    for (std::size_t i = 0; i < launches.size(); ++i) {
      if (!launches[i].wants_heartbeats()) continue;
      streams[i].talk.write("\n");
      (void)streams[i].talk.flush();
    }
  }
  std::vector<ClusterError::Failure> failures;
  for (std::size_t i = 0; i < launches.size(); ++i)
    if (launches[i].stage() == NodeLaunch::Stage::failed) failures.push_back({names_[i], launches[i].why()});
  if (!failures.empty()) throw ClusterError(nodes_.size(), std::move(failures));
}

Cluster::Server Cluster::State::server_of(std::size_t node, const Value& ready) const {
  Server server{
      names_[node], ready["address"].string(), static_cast<int>(ready["port"].integer()), ready["pid"].integer(), {}};
  const std::string& host = nodes_[node].host;
  if (const Tunnel tunnel = tunnel_of(node); !tunnel.here.empty()) {
    server.host = tunnel.here;
    return server;
  }
  if (is_local(host)) return server;
  // ssh may know the host by a name that nobody else does; then the address at which it arrived there must do.
  try {
    const std::string name = host.substr(host.find('@') == std::string::npos ? 0 : host.find('@') + 1);
    (void)network::resolve(name, server.port);
    server.address = server.host;
    server.host = name;
  } catch (const UnknownHost&) {
  }
  return server;
}

void Cluster::State::take_over(const std::vector<NodeLaunch>& launches) {
  servers_.clear();
  labelled_.assign(nodes_.size(), 0);
  for (std::size_t i = 0; i < launches.size(); ++i) {
    servers_.push_back(server_of(i, launches[i].server()));
    std::istringstream complaints(launches[i].complaints());
    for (std::string line; std::getline(complaints, line);)
      std::fprintf(stderr, "[%s] %s\n", names_[i].c_str(), line.c_str());
    attendant_->take_over(i);
  }
}

RemoteAddress Cluster::State::server_address(std::size_t node) const {
  RemoteAddress address{servers_[node].host, servers_[node].port, {}, names_[node], servers_[node].address};
  address.options.key = key_.hex();
  address.options.unreachable_s = options.unreachable_s;
  address.options.worker = options.worker;
  return address;
}

// Found out once, by a process on each node that is gone when the driver has answered.
const Machine& Cluster::State::machine_of(std::size_t node) {
  if (machines_.empty()) {
    std::vector<std::size_t> all(nodes_.size());
    std::iota(all.begin(), all.end(), 0);
    std::vector<Worker> probes = connect_probes(all);
    for (Worker& probe : probes) probe.send({{"cmd", "machine"}});
    for (Worker& probe : probes) machines_.push_back(machine_from(probe.recv({{}, options.start_timeout_s})));
  }
  return machines_[node];
}

Cluster::State::Wanted Cluster::State::wanted(const std::string& work_fn, const StartOptions& start) {
  Wanted all;
  std::string without_gpu;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const int workers = start.num_workers.value_or(nodes_[i].num_workers);
    const double gpus_per_worker = start.gpus_per_worker.value_or(nodes_[i].gpus_per_worker);
    if (workers < 1) throw UsageError("num_workers is 1 or more, not " + std::to_string(workers));
    check_gpus_per_worker(gpus_per_worker, names_[i]);
    std::vector<WorkerPlace> places(static_cast<std::size_t>(workers));
    if (gpus_per_worker > 0 || !start.gpus.empty()) {
      places = plan_gpus(machine_of(i), names_[i], workers, gpus_per_worker, start);
      if (machine_of(i).gpus.empty()) without_gpu += (without_gpu.empty() ? "" : ", ") + names_[i];
    }
    for (std::size_t worker = 0; worker < places.size(); ++worker) {
      RemoteOptions& remote = all.addresses.emplace_back(server_address(i)).options;
      remote.work_fn = work_fn;
      remote.label = names_[i] + "/" + std::to_string(static_cast<std::size_t>(labelled_[i]) + worker);
      remote.worker.name = remote.label + (work_fn.empty() ? "" : ", " + work_fn);
      remote.environment = places[worker].environment;
      remote.cpus = places[worker].cpus;
      all.nodes.push_back(i);
    }
  }
  if (!without_gpu.empty() && options.progress && !std::exchange(told_of_no_gpu_, true))
    std::fprintf(stderr, "miniray: no GPU on %s; workers there run without\n", without_gpu.c_str());
  return all;
}

std::vector<Worker> Cluster::State::connect(const Wanted& wanted) {
  std::vector<ConnectFailure> failures;
  std::vector<std::unique_ptr<Worker::State>> states = connect_workers(wanted.addresses, failures);
  if (!failures.empty()) {  // one line for each node; its workers fail alike
    std::vector<ClusterError::Failure> told;
    for (const ConnectFailure& failure : failures) {
      const std::size_t at = wanted.nodes[failure.address];
      if (std::ranges::find(told, names_[at], &ClusterError::Failure::node) == told.end())
        told.push_back({names_[at], tunnelled(at) ? with_tunnel_hint(text_of(failure.error)) : text_of(failure.error)});
    }
    throw ClusterError(nodes_.size(), std::move(told));
  }
  std::vector<Worker> workers;
  workers.reserve(states.size());
  for (std::unique_ptr<Worker::State>& state : states) workers.push_back(assemble(std::move(state)));
  return workers;
}

std::vector<Worker> Cluster::State::connect(const std::string& work_fn, const StartOptions& start) {
  if (!launched()) throw UsageError("the cluster's servers are not up; call launch_servers() or start()");
  const Wanted all = wanted(work_fn, start);
  std::vector<Worker> workers = connect(all);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    broadcaster_.add(workers[i], all.nodes[i]);
    ++labelled_[all.nodes[i]];
  }
  return workers;
}

std::vector<Worker> Cluster::State::connect_probes(const std::vector<std::size_t>& nodes) {
  if (!launched()) throw UsageError("the cluster's servers are not up; call launch_servers() or start()");
  Wanted all;
  for (const std::size_t i : nodes) {
    RemoteOptions& remote = all.addresses.emplace_back(server_address(i)).options;
    remote.work_fn = probe_function;
    remote.label = names_[i] + "/probe";
    remote.worker.name = remote.label;
    all.nodes.push_back(i);
  }
  return connect(all);
}

std::size_t Cluster::State::node_of(Worker& worker) const {
  const std::optional<std::size_t> node = broadcaster_.node_of(worker);
  if (!node) throw UsageError(worker.name() + " is not a worker of this cluster");
  return *node;
}

void Cluster::State::broadcast(std::span<Worker* const> workers, const Message& message) {
  broadcaster_.send(workers, message, [&](std::size_t node) { return server_address(node); });
}

std::vector<Worker*> Cluster::State::all_workers() {
  std::vector<Worker*> all;
  for (std::vector<Worker>& workers : started)
    for (Worker& worker : workers) all.push_back(&worker);
  return all;
}

// All are told first, and then share one grace. A server that is stuck cannot tell of its workers, so the end of the
// servers must not wait for that.
void Cluster::State::stop(std::span<Worker* const> others) {
  std::vector<Worker*> workers = all_workers();
  workers.insert(workers.end(), others.begin(), others.end());
  for (Worker* worker : workers) worker->end();
  const std::vector<Worker*> late = still_running(workers, limits::close_grace_ms);
  for (Worker* worker : late) worker->kill(SIGKILL);
  const std::vector<Worker*> stuck = still_running(late, limits::exit_wait_ms);
  for (Worker* worker : workers)
    if (std::ranges::find(stuck, worker) == stuck.end()) worker->close(0);
  broadcaster_ = {};
  machines_.clear();
  ports_given.clear();
  servers_.clear();
  if (attendant_)
    (void)attendant_->finish(Deadline::in_ms(limits::orphan_grace_ms + limits::stop_margin_ms),
                             options.worker.on_interrupt);
  attendant_.reset();
  folder_.reset();
  for (Worker* worker : stuck) worker->close(0);  // with their servers, which could not tell
  started.clear();
}

Cluster::Cluster(std::vector<NodeConfig> nodes, ClusterOptions options)
    : state_(std::make_unique<State>(std::move(nodes), std::move(options))) {}
Cluster::Cluster(Cluster&&) noexcept = default;
Cluster& Cluster::operator=(Cluster&&) noexcept = default;

Cluster::~Cluster() {
  if (!state_) return;
  try {
    state_->stop({});
  } catch (const std::exception&) {  // an interrupt; what is left ends with the attendant
  }
}

void Cluster::launch_servers(const std::string& work_fn) { state_->launch(work_fn); }
std::vector<Worker> Cluster::connect_to_servers(const std::string& work_fn, const StartOptions& options) {
  return state_->connect(work_fn, options);
}
std::vector<Worker> Cluster::connect_probes(const std::vector<std::size_t>& nodes) {
  return state_->connect_probes(nodes);
}
std::size_t Cluster::node_of(Worker& worker) const { return state_->node_of(worker); }
std::set<int>& Cluster::ports_given() { return state_->ports_given; }

std::span<Worker> Cluster::start(const std::string& work_fn, const StartOptions& options) {
  const bool first = !state_->launched();
  if (first) state_->launch(work_fn);
  try {
    return state_->started.emplace_back(state_->connect(work_fn, options));
  } catch (...) {
    if (first) state_->stop({});
    throw;
  }
}

void Cluster::broadcast(const Value& message) {
  broadcast(state_->all_workers(), encode(message, state_->options.worker.codec));
}
void Cluster::broadcast(std::span<Worker* const> workers, const Message& message) {
  state_->broadcast(workers, message);
}

std::vector<Value> Cluster::gather(const ReceiveOptions& options) {
  std::vector<Value> values;
  for (const Message& message : gather(state_->all_workers(), options)) values.push_back(decode(message));
  return values;
}

void Cluster::stop(std::span<Worker* const> workers) { state_->stop(workers); }
std::vector<Cluster::Server> Cluster::servers() const { return state_->servers(); }

}  // namespace miniray
