#include "launch/node_servers.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <sstream>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/network.hpp"
#include "base/shown_text.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

void check_size(const std::string& path, std::uint64_t bytes) {
  if (bytes <= limits::code_bytes_max) return;
  throw UsageError("the program " + path + " is too large to be copied to the nodes: it has " +
                   std::to_string(bytes / limits::mib) + " MiB, and the limit is " +
                   std::to_string(limits::code_bytes_max / limits::mib) +
                   " (code_bytes_max). Strip it, or set ship_code to false and put it at the same path on the nodes");
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

NodeServers::NodeServers(const std::vector<NodeConfig>& nodes, const std::vector<std::string>& names,
                         const ClusterOptions& options)
    : nodes_(nodes), names_(names), options_(options) {
  MINIRAY_CHECK(nodes.size() == names.size(), nodes.size(), names.size());
}

bool NodeServers::tunnelled(std::size_t node) const { return options_.tunnel && !is_local(nodes_[node].host); }

// Each launch has a tunnel of its own, because the server before may still hold the old sockets.
Tunnel NodeServers::tunnel_of(std::size_t node) const {
  if (!tunnelled(node)) return {};
  MINIRAY_CHECK(folder_ && attended_[node].launches > 0, node, attended_[node].launches);
  const std::string name = std::to_string(node) + "." + std::to_string(attended_[node].launches);
  return {(folder_->path() / name).string(), "/tmp/miniray-" + attended_[node].tunnel_token + "-" + name + "/socket"};
}

bool NodeServers::ships_program(std::size_t node) const {
  return !launched_->program.executable.empty() && options_.ship_code && !is_local(nodes_[node].host);
}

std::vector<std::string> NodeServers::command_of(std::size_t node) const {
  const ServerProgram& program = launched_->program;
  std::string command = program.command(nodes_[node]);
  if (!program.executable.empty()) {
    if (ships_program(node))
      command = with_shipped_program(command, launched_->executable_hash, launched_->executable->size());
    else
      command.insert(0, "program=" + quote_for_shell(program.executable) + "; ");
  }
  return launch_command(nodes_[node], command, tunnel_of(node), unreachable_ms_);
}

Value NodeServers::config_of(std::size_t node) const {
  const NodeConfig& config = nodes_[node];
  Map environment;
  for (const auto& [name, value] : config.env) environment.emplace_back(name, value);
  return {{"encrypt", options_.encrypt ? Value(*options_.encrypt) : Value()},
          {"port", config.base_port},
          {"replaces", attended_[node].launches > 1},
          {"local", is_local(config.host)},
          {"socket", tunnel_of(node).there},
          {"environment", Value(std::move(environment))},
          {"workdir", config.workdir},
          {"unreachable_ms", unreachable_ms_},
          // With files, standard output and errors share one stream, so that a worker's file has the right order.
          {"one_stream", !options_.output.empty()},
          {"code", launched_->code.empty() ? Value() : launched_->code.manifest()},
          {"setup", launched_->program.setup},
          {"work_fn", launched_->work_fn}};
}

void NodeServers::launch(const std::string& work_fn) {
  if (launched()) throw UsageError("the cluster's servers are up already. stop() ends them");
  ServerProgram program = options_.program;
  CodeBundle code = options_.ship_code ? CodeBundle(program.files) : CodeBundle();
  std::string executable = program.executable.empty() ? std::string() : read_file(program.executable);
  // Local nodes run the program where it is, so its size does not matter to them.
  if (options_.ship_code && !std::ranges::all_of(nodes_, is_local, &NodeConfig::host))
    check_size(program.executable, executable.size());
  const std::string hash = program.executable.empty() ? std::string() : content_hash(executable);
  unreachable_ms_ = static_cast<int>(options_.unreachable_s * 1000);
  if (options_.tunnel) folder_ = std::make_unique<PrivateFolder>();
  attended_.assign(nodes_.size(), {});
  servers_.assign(nodes_.size(), {});
  launched_ = std::make_shared<const Launched>(Launched{
      std::move(program), std::move(code), std::make_shared<const std::string>(std::move(executable)), hash, work_fn});
  std::vector<std::size_t> all(nodes_.size());
  std::iota(all.begin(), all.end(), 0);
  std::unique_ptr<BringUp> launch;
  try {
    launch = begin_launch(all, options_.start_timeout_s, "start_timeout_s");
    while (!launch->advance()) launch->wait();
    if (std::vector<ClusterError::Failure> failures = launch->failures(); !failures.empty())
      throw ClusterError(nodes_.size(), std::move(failures));
    finish_launch(all, *launch);
  } catch (...) {
    // Ends the servers of the nodes that came up. An attendant that takes longer is killed with its object.
    if (launch) (void)launch->attendant()->finish(Deadline::in_ms(limits::failed_stop_ms), {});
    attended_.clear();
    servers_.clear();
    launched_.reset();
    folder_.reset();
    throw;
  }
}

void NodeServers::relaunch(std::size_t node, double timeout_s) {
  begin_relaunch(node, timeout_s);
  try {
    while (!advance_relaunch(node)) {
      const Relaunch& relaunch = relaunches_.at(node);
      if (relaunch.launch)
        relaunch.launch->wait();
      else
        (void)relaunch.old_attendant->finish(Deadline::in_ms(limits::wait_slice_ms), options_.worker.on_interrupt);
    }
  } catch (...) {
    relaunches_.erase(node);
    throw;
  }
}

void NodeServers::begin_relaunch(std::size_t node, double timeout_s) {
  if (!launched()) throw UsageError("the cluster's servers are not up. Call launch_servers() or start()");
  if (relaunches_.contains(node)) return;  // another caller has begun it
  Attended& attended = attended_[node];
  attended.why_down = "it was interrupted";
  std::shared_ptr<Attendant> attendant = std::exchange(attended.attendant, nullptr);
  if (attendant) attendant->drop(attended.position);
  if (attendant && attendant.use_count() > 1) attendant = nullptr;  // it attends other nodes
  relaunches_.insert_or_assign(node, Relaunch{timeout_s, std::move(attendant)});
}

bool NodeServers::advance_relaunch(std::size_t node) {
  if (!relaunches_.contains(node)) {  // another caller has advanced it to its end
    require_up({node});
    return true;
  }
  Relaunch& relaunch = relaunches_.at(node);
  if (!relaunch.launch) {
    const bool ended = !relaunch.old_attendant || relaunch.old_attendant->finish(Deadline::in_ms(0), {});
    if (!ended && !relaunch.old_ends_until.passed()) return false;
    relaunch.old_attendant = nullptr;
    relaunch.launch = begin_launch({node}, relaunch.timeout_s, "timeout_s");
  }
  if (!relaunch.launch->advance()) return false;
  const std::unique_ptr<BringUp> launch = std::move(relaunch.launch);
  relaunches_.erase(node);
  if (std::vector<ClusterError::Failure> failures = launch->failures(); !failures.empty()) {
    attended_[node].why_down = failures.front().why;
    throw ClusterError(1, std::move(failures));
  }
  finish_launch({node}, *launch);
  return true;
}

std::unique_ptr<BringUp> NodeServers::begin_launch(const std::vector<std::size_t>& nodes, double timeout_s,
                                                   const char* timeout_name) {
  MINIRAY_CHECK(launched_ && attended_.size() == nodes_.size() && servers_.size() == nodes_.size(), attended_.size(),
                servers_.size(), nodes_.size());
  std::vector<NodeLaunch> launches;
  std::vector<std::string> names;
  std::vector<Attendant::Node> commands;
  for (const std::size_t node : nodes) {
    MINIRAY_CHECK(!attended_[node].attendant, node, names_[node]);  // else two servers would run on the node
    ++attended_[node].launches;
    attended_[node].key = std::make_shared<const Key>(Key::random());
    attended_[node].tunnel_token = random_hex(8);
    const std::shared_ptr<const CodeBundle> code(launched_, &launched_->code);  // shares the ownership of launched_
    launches.emplace_back(nodes_[node], NodeLaunch::Parts{*attended_[node].key, config_of(node), code,
                                                          launched_->executable, ships_program(node)});
    names.push_back(names_[node]);
    commands.push_back({names_[node], command_of(node)});
  }
  auto attendant =
      std::make_shared<Attendant>(commands, Attendant::Options{options_.output, unreachable_ms_, options_.attendant});
  return std::make_unique<BringUp>(
      std::move(attendant), std::move(launches), std::move(names),
      BringUpOptions{timeout_s, timeout_name, unreachable_ms_, options_.progress, options_.worker.on_interrupt});
}

void NodeServers::finish_launch(const std::vector<std::size_t>& nodes, const BringUp& launch) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    attended_[nodes[i]].attendant = launch.attendant();
    attended_[nodes[i]].position = i;
    set_up_server(nodes[i], launch.launches()[i]);
  }
}

LaunchedServer NodeServers::server_of(std::size_t node, const Value& ready) const {
  LaunchedServer server{
      names_[node], ready["address"].string(), static_cast<int>(ready["port"].integer()), ready["pid"].integer(), {}};
  const std::string& host = nodes_[node].host;
  if (const Tunnel tunnel = tunnel_of(node); !tunnel.here.empty()) {
    server.host = tunnel.here;
    return server;
  }
  if (is_local(host)) return server;
  // The host may be a name that only ssh knows, from its configuration. Then the address that ssh reached is used.
  try {
    const std::string name = host.substr(host.find('@') == std::string::npos ? 0 : host.find('@') + 1);
    (void)network::resolve(name, server.port);
    server.address = server.host;
    server.host = name;
  } catch (const UnknownHost&) {
  }
  return server;
}

void NodeServers::set_up_server(std::size_t node, const NodeLaunch& launch) {
  Attended& attended = attended_[node];
  MINIRAY_CHECK(launch.stage() == NodeLaunch::Stage::ready && attended.attendant, names_[node], launch.stage_name());
  servers_[node] = server_of(node, launch.server());
  // From here on the attendant prints the node's errors; these came before.
  std::istringstream error_output(launch.error_output());
  const bool to_terminal = isatty(STDERR_FILENO) != 0;
  for (std::string line; std::getline(error_output, line);)
    std::fprintf(stderr, "[%s] %s\n", names_[node].c_str(), (to_terminal ? shown(line, Colours::keep) : line).c_str());
  attended.attendant->hand_over(attended.position);
  attended.why_down.clear();
}

void NodeServers::finish_relaunches(const std::vector<std::size_t>& nodes) {
  for (const std::size_t node : nodes)
    if (relaunches_.contains(node)) relaunch(node, relaunches_.at(node).timeout_s);
  require_up(nodes);
}

void NodeServers::require_up(const std::vector<std::size_t>& nodes) const {
  if (!launched()) throw UsageError("the cluster's servers are not up. Call launch_servers() or start()");
  std::vector<ClusterError::Failure> down;
  for (const std::size_t node : nodes)
    if (!attended_[node].attendant)
      down.push_back({names_[node], "the node has no server. Call relaunch() to try again; the last attempt failed: " +
                                        attended_[node].why_down});
  if (!down.empty()) throw ClusterError(nodes.size(), std::move(down));
}

RemoteAddress NodeServers::address_of(std::size_t node) const {
  RemoteAddress address{servers_[node].host, servers_[node].port, {}, names_[node], servers_[node].address};
  address.options.own_key = attended_[node].key;
  address.options.encrypt = options_.encrypt;
  address.options.unreachable_s = options_.unreachable_s;
  address.options.worker = options_.worker;
  return address;
}

void NodeServers::expect_workers(std::size_t node, int count) {
  const Attended& attended = attended_.at(node);
  if (attended.attendant) attended.attendant->expect_workers(attended.position, count);
}

void NodeServers::finish(bool soon) {
  std::set<std::shared_ptr<Attendant>> all;
  for (Attended& attended : attended_)
    if (attended.attendant) all.insert(std::move(attended.attendant));
  attended_.clear();
  relaunches_.clear();
  servers_.clear();
  // A server gives its workers orphan_grace_ms to end.
  const Deadline deadline =
      Deadline::in_ms(soon ? limits::failed_stop_ms : limits::orphan_grace_ms + limits::stop_margin_ms);
  launched_.reset();
  // All are told first, so that the waits overlap.
  for (const std::shared_ptr<Attendant>& attendant : all) attendant->begin_finish();
  for (const std::shared_ptr<Attendant>& attendant : all)
    (void)attendant->finish(deadline, options_.worker.on_interrupt);
  folder_.reset();
}

}  // namespace miniray
