#include "collective/node_probes.hpp"

#include <algorithm>
#include <numeric>

#include "cluster/dial.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr double answer_timeout_s = limits::probe_answer_ms / 1000.0;

}  // namespace

NodeProbes::NodeProbes(Cluster& cluster, std::vector<std::size_t> nodes) : servers_(cluster.servers()) {
  if (nodes.empty()) {
    nodes.resize(servers_.size());
    std::iota(nodes.begin(), nodes.end(), 0);
  }
  std::vector<Worker> probes = cluster.connect_probes(nodes);
  for (std::size_t i = 0; i < nodes.size(); ++i) probes_.emplace(nodes[i], std::move(probes[i]));
}

void NodeProbes::send_order(std::size_t node, const Value& order) {
  try {
    probes_.at(node).send(order);
  } catch (const Error& error) {
    throw ProbeFailure(node, error.what());
  }
}

Value NodeProbes::receive_answer(std::size_t node, double timeout_s) {
  try {
    return probes_.at(node).recv({{}, timeout_s});
  } catch (const Error& error) {
    throw ProbeFailure(node, error.what());
  }
}

Value NodeProbes::ask(std::size_t node, const Value& order) {
  send_order(node, order);
  return receive_answer(node, answer_timeout_s);
}

std::map<std::size_t, Value> NodeProbes::ask_all(const Value& order) {
  // All are asked before the first answer is read, so that the probes work at the same time.
  for (const auto& [node, probe] : probes_) send_order(node, order);
  std::map<std::size_t, Value> answers;
  for (const auto& [node, probe] : probes_) answers[node] = receive_answer(node, answer_timeout_s);
  return answers;
}

const Value& NodeProbes::facts(std::size_t node) {
  if (facts_.empty()) facts_ = ask_all({{"cmd", "facts"}});
  return facts_.at(node);
}

bool NodeProbes::same_machine(std::size_t one, std::size_t other) {
  return facts(one)["machine_id"] == facts(other)["machine_id"];
}

std::vector<std::string> NodeProbes::addresses(std::size_t node) {
  std::vector<std::string> found;
  for (const Value& interface : facts(node)["interfaces"].list())
    if (!interface["loopback"].boolean()) found.push_back(interface["host"].string());
  // The address that ssh used is the one by which the user reaches the node, so it goes first.
  const auto at = std::ranges::find(found, facts(node)["reached_at"].string());
  if (at != found.end()) std::rotate(found.begin(), at, at + 1);
  return found;
}

std::string NodeProbes::interface_of(std::size_t node, const std::string& address) {
  for (const Value& interface : facts(node)["interfaces"].list())
    if (interface["host"].string() == address) return interface["name"].string();
  return {};
}

Value NodeProbes::as_target(const Endpoint& endpoint) {
  return {{"host", endpoint.host}, {"port", endpoint.port}, {"token", facts(endpoint.node)["token"]}};
}

std::vector<NodeProbes::Attempt> NodeProbes::dial(const std::vector<std::size_t>& from,
                                                  const std::vector<Endpoint>& endpoints) {
  std::vector<Attempt> attempts;
  for (const std::size_t node : from) {
    List to;
    for (const Endpoint& endpoint : endpoints) {
      if (same_machine(node, endpoint.node)) continue;
      attempts.push_back({node, endpoint, ""});
      to.push_back(as_target(endpoint));
    }
    send_order(node, {{"cmd", "dial"}, {"to", Value(std::move(to))}, {"timeout_ms", limits::dial_timeout_ms}});
  }
  std::size_t at = 0;
  // In the worst case every attempt times out; a probe makes at least 100 of them at a time.
  const double patience_s = answer_timeout_s + static_cast<double>(endpoints.size()) * limits::dial_timeout_ms / 1e5;
  for (const std::size_t node : from) {
    const Value answer = receive_answer(node, patience_s);
    for (const Value& outcome : answer["outcomes"].list()) attempts[at++].outcome = outcome.string();
  }
  return attempts;
}

std::vector<NodeProbes::Attempt> NodeProbes::dial_from_here(const std::vector<Endpoint>& endpoints,
                                                            const std::function<void()>& on_interrupt) {
  List to;
  std::vector<Attempt> attempts;
  for (const Endpoint& endpoint : endpoints) {
    to.push_back(as_target(endpoint));
    attempts.push_back({endpoint.node, endpoint, ""});
  }
  const std::vector<std::string> outcomes = dial_all(to, limits::dial_timeout_ms, on_interrupt);
  for (std::size_t i = 0; i < attempts.size(); ++i) attempts[i].outcome = outcomes[i];
  return attempts;
}

std::string describe(const NodeProbes::Attempt& attempt) {
  const std::string& host = attempt.endpoint.host;
  const std::string address =
      (host.find(':') != std::string::npos ? "[" + host + "]" : host) + ":" + std::to_string(attempt.endpoint.port);
  const std::string& outcome = attempt.outcome;
  if (outcome.empty()) return address + ": reached";
  if (outcome == "silent")
    return address + ": no answer in " + std::to_string(limits::dial_timeout_ms / 1000) +
           " s: a firewall drops the packets, or the answers find no way back";
  if (outcome == "refused") return address + ": refused by a firewall, because the port is open on the node";
  if (outcome == "stranger") return address + ": another process answers, so another machine has this address too";
  if (outcome == "mute") return address + ": the connection was accepted, but no data came over it";
  return address + ": " + outcome + " (a firewall, or no route)";
}

}  // namespace miniray
