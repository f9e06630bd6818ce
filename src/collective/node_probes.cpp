#include "collective/node_probes.hpp"

#include <algorithm>

#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr double answer_timeout_s = 60;  // a driver that is slow to wake, a name server that does not answer

}  // namespace

NodeProbes::NodeProbes(Cluster& cluster) : servers_(cluster.servers()), probes_(cluster.connect_probes()) {}

Value NodeProbes::ask(std::size_t node, const Value& order) {
  probes_[node].send(order);
  return probes_[node].recv({{}, answer_timeout_s});
}

std::vector<Value> NodeProbes::ask_all(const Value& order) {
  for (Worker& probe : probes_) probe.send(order);
  std::vector<Value> answers;
  for (Worker& probe : probes_) answers.push_back(probe.recv({{}, answer_timeout_s}));
  return answers;
}

const Value& NodeProbes::facts(std::size_t node) {
  if (facts_.empty()) facts_ = ask_all({{"cmd", "facts"}});
  return facts_[node];
}

bool NodeProbes::same_machine(std::size_t one, std::size_t other) {
  return facts(one)["machine_id"] == facts(other)["machine_id"];
}

std::vector<std::string> NodeProbes::addresses(std::size_t node) {
  std::vector<std::string> found;
  for (const Value& interface : facts(node)["interfaces"].list())
    if (!interface["loopback"].boolean()) found.push_back(interface["host"].string());
  // Where ssh arrived is where the user wants the node to be reached.
  const Cluster::Server& server = servers_[node];
  for (const std::string& host : {server.host, server.address}) {
    const auto at = std::ranges::find(found, host);
    if (at != found.end()) std::rotate(found.begin(), at, at + 1);
  }
  return found;
}

std::vector<NodeProbes::Attempt> NodeProbes::call(const std::vector<std::size_t>& callers,
                                                  const std::vector<Door>& doors) {
  std::vector<Attempt> attempts;
  for (const std::size_t caller : callers) {
    List to;
    for (const Door& door : doors) {
      if (same_machine(caller, door.node)) continue;
      attempts.push_back({caller, door, ""});
      to.push_back({{"host", door.host}, {"port", door.port}, {"token", facts(door.node)["token"]}});
    }
    probes_[caller].send({{"cmd", "dial"}, {"to", Value(std::move(to))}, {"timeout_ms", limits::dial_timeout_ms}});
  }
  std::size_t at = 0;
  for (const std::size_t caller : callers) {
    const Value answer = probes_[caller].recv({{}, answer_timeout_s});
    for (const Value& outcome : answer["outcomes"].list()) attempts[at++].outcome = outcome.string();
  }
  return attempts;
}

std::string describe(const NodeProbes::Attempt& attempt) {
  const std::string door =
      (attempt.door.host.find(':') != std::string::npos ? "[" + attempt.door.host + "]" : attempt.door.host) + ":" +
      std::to_string(attempt.door.port);
  const std::string& outcome = attempt.outcome;
  if (outcome.empty()) return door + ": reached";
  if (outcome == "silent")
    return door + ": no answer in " + std::to_string(limits::dial_timeout_ms / 1000) + " s, so a firewall drops it";
  if (outcome == "refused") return door + ": refused, by a firewall, as the port is open there";
  if (outcome == "stranger") return door + ": another process answers, so the address is not that node's alone";
  if (outcome == "mute") return door + ": connected, and then nothing more came";
  return door + ": " + outcome;
}

}  // namespace miniray
