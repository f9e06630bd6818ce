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

void NodeProbes::tell(std::size_t node, const Value& order) {
  try {
    probes_.at(node).send(order);
  } catch (const Error& error) {
    throw ProbeLost(node, error.what());
  }
}

Value NodeProbes::hear(std::size_t node, double timeout_s) {
  try {
    return probes_.at(node).recv({{}, timeout_s});
  } catch (const Error& error) {
    throw ProbeLost(node, error.what());
  }
}

Value NodeProbes::ask(std::size_t node, const Value& order) {
  tell(node, order);
  return hear(node, answer_timeout_s);
}

std::map<std::size_t, Value> NodeProbes::ask_all(const Value& order) {
  for (const auto& [node, probe] : probes_) tell(node, order);
  std::map<std::size_t, Value> answers;
  for (const auto& [node, probe] : probes_) answers[node] = hear(node, answer_timeout_s);
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
  // Where ssh arrived is where the user wants the node to be reached.
  const auto at = std::ranges::find(found, facts(node)["reached_at"].string());
  if (at != found.end()) std::rotate(found.begin(), at, at + 1);
  return found;
}

std::string NodeProbes::interface_of(std::size_t node, const std::string& address) {
  for (const Value& interface : facts(node)["interfaces"].list())
    if (interface["host"].string() == address) return interface["name"].string();
  return {};
}

Value NodeProbes::as_order(const Door& door) {
  return {{"host", door.host}, {"port", door.port}, {"token", facts(door.node)["token"]}};
}

std::vector<NodeProbes::Attempt> NodeProbes::dial(const std::vector<std::size_t>& from,
                                                  const std::vector<Door>& doors) {
  std::vector<Attempt> attempts;
  for (const std::size_t node : from) {
    List to;
    for (const Door& door : doors) {
      if (same_machine(node, door.node)) continue;
      attempts.push_back({node, door, ""});
      to.push_back(as_order(door));
    }
    tell(node, {{"cmd", "dial"}, {"to", Value(std::move(to))}, {"timeout_ms", limits::dial_timeout_ms}});
  }
  std::size_t at = 0;
  // They dial many at a time, and in the worst case none answers.
  const double patience_s = answer_timeout_s + static_cast<double>(doors.size()) * limits::dial_timeout_ms / 1e5;
  for (const std::size_t node : from) {
    const Value answer = hear(node, patience_s);
    for (const Value& outcome : answer["outcomes"].list()) attempts[at++].outcome = outcome.string();
  }
  return attempts;
}

std::vector<NodeProbes::Attempt> NodeProbes::dial_from_here(const std::vector<Door>& doors,
                                                            const std::function<void()>& on_interrupt) {
  List to;
  std::vector<Attempt> attempts;
  for (const Door& door : doors) {
    to.push_back(as_order(door));
    attempts.push_back({door.node, door, ""});
  }
  const std::vector<std::string> outcomes = dial_all(to, limits::dial_timeout_ms, on_interrupt);
  for (std::size_t i = 0; i < attempts.size(); ++i) attempts[i].outcome = outcomes[i];
  return attempts;
}

std::string describe(const NodeProbes::Attempt& attempt) {
  const std::string door =
      (attempt.door.host.find(':') != std::string::npos ? "[" + attempt.door.host + "]" : attempt.door.host) + ":" +
      std::to_string(attempt.door.port);
  const std::string& outcome = attempt.outcome;
  if (outcome.empty()) return door + ": reached";
  if (outcome == "silent")
    return door + ": no answer in " + std::to_string(limits::dial_timeout_ms / 1000) +
           " s: a firewall drops it, or there is no way back";
  if (outcome == "refused") return door + ": refused, by a firewall, as the port is open there";
  if (outcome == "stranger") return door + ": another process answers, so the address is not that node's alone";
  if (outcome == "mute") return door + ": connected, and then nothing more came";
  return door + ": " + outcome + " (a firewall, or no route)";
}

}  // namespace miniray
