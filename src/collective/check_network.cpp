// A part of the check: every node must reach every other, by the names and on the ports that training will use.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/network.hpp"
#include "collective/examination.hpp"
#include "launch/launch_command.hpp"

namespace miniray {
namespace {

constexpr double slow_lookup_s = limits::slow_lookup_ms / 1000.0;

std::string host_of(const std::string& ssh_host) {
  const std::size_t at = ssh_host.find('@');
  return at == std::string::npos ? ssh_host : ssh_host.substr(at + 1);
}

class NetworkCheck {
 public:
  explicit NetworkCheck(Examination& examination) : exam_(examination) {}

  void run() {
    check_ports();
    check_ways();
    check_ways_from_here();
    check_names();
  }

 private:
  void check_ports() {
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      std::set<int> wanted(exam_.what.ports.begin(), exam_.what.ports.end());
      if (exam_.what.base_ports && exam_.nodes[i].base_port > 0) wanted.insert(exam_.nodes[i].base_port);
      for (const int port : wanted) {
        const Value answer = exam_.probes->ask(i, {{"cmd", "listen"}, {"port", port}});
        if (answer.find("port") != nullptr) {
          open_[i].insert(port);
          continue;
        }
        const bool is_base = port == exam_.nodes[i].base_port && !std::ranges::count(exam_.what.ports, port);
        if (const std::optional<std::size_t> other = neighbour_with(i, port)) {
          if (exam_.nodes[*other].base_port == port && exam_.nodes[i].base_port == port && exam_.what.base_ports)
            exam_.problem(exam_.name(i), "port",
                          "it is on the same machine as " + exam_.name(*other) + ", and both want the base_port " +
                              std::to_string(port),
                          "Give one of them another base_port; 0 is any that is free");
          continue;
        }
        exam_.problem(
            exam_.name(i), "port", "the port " + std::to_string(port) + " " + answer["error"].string(),
            is_base ? "End it, or give NodeConfig another base_port; 0 is any that is free"
                    : "End it, or choose another master_port; cluster.training_group() takes the next that is free");
      }
      const Value any = exam_.probes->ask(i, {{"cmd", "listen"}, {"port", 0}});
      if (any.find("port") != nullptr) chosen_[i] = static_cast<int>(any["port"].integer());
    }
  }

  // Another node of the list, on the same machine, has the port for this check.
  [[nodiscard]] std::optional<std::size_t> neighbour_with(std::size_t node, int port) {
    for (std::size_t other = 0; other < node; ++other)
      if (open_[other].contains(port) && exam_.probes->same_machine(node, other)) return other;
    return std::nullopt;
  }

  void check_ways() {
    std::vector<std::size_t> all;
    std::vector<NodeProbes::Door> doors;
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      all.push_back(i);
      for (const std::string& host : exam_.probes->addresses(i)) {
        for (const int port : open_[i]) doors.push_back({i, host, port});
        if (chosen_.contains(i)) doors.push_back({i, host, chosen_[i]});
      }
    }
    attempts_ = exam_.probes->dial(all, doors);
    for (const std::size_t to : all) {
      for (const std::size_t from : all) {
        if (exam_.probes->same_machine(from, to)) continue;
        std::set<int> ports = open_[to];
        if (chosen_.contains(to)) ports.insert(chosen_[to]);
        std::string failed;
        bool some = false;
        for (const int port : ports) {
          const std::string told = failures_of(attempts_, from, to, port);
          failed += told;
          some = some || told.empty();
        }
        if (!failed.empty())
          exam_.problem(exam_.name(from) + " -> " + exam_.name(to), "reach",
                        std::string(some ? "not all ports can be reached:" : "cannot be reached:") + failed,
                        cure_for_way(to, source_of(from)));
      }
      if (exam_.nodes.size() > 1 && exam_.probes->addresses(to).empty())
        exam_.problem(exam_.name(to), "reach", "has no address but its own loopback's",
                      "See `ip address` there: bring a network interface up");
    }
  }

  // Empty if the port is reached at one of the addresses at least.
  [[nodiscard]] std::string failures_of(const std::vector<NodeProbes::Attempt>& attempts, std::size_t from,
                                        std::size_t to, int port) {
    std::string failed;
    for (const NodeProbes::Attempt& attempt : attempts) {
      if (attempt.from != from || attempt.door.node != to || attempt.door.port != port) continue;
      if (attempt.outcome.empty()) return {};
      failed += "\n    " + describe(attempt) + (port == chosen_[to] ? " (a port of the system's choice)" : "");
    }
    return failed;
  }

  [[nodiscard]] std::string source_of(std::size_t node) {
    const std::vector<std::string> sources = exam_.probes->addresses(node);
    return sources.empty() ? exam_.name(node) : sources.front();
  }

  [[nodiscard]] std::string cure_for_way(std::size_t to, const std::string& source) {
    const char* iptables = source.find(':') != std::string::npos ? "ip6tables" : "iptables";
    return "On " + exam_.name(to) + ": sudo ufw allow from " + source + " (or: sudo " + iptables + " -I INPUT -s " +
           source + " -j ACCEPT); NCCL and Gloo use ports of their own choice too";
  }

  // MiniRay's own connections come from this machine.
  void check_ways_from_here() {
    if (exam_.options.tunnel) return;
    std::vector<NodeProbes::Door> doors;
    std::vector<NodeProbes::Attempt> attempts;
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      if (is_local(exam_.nodes[i].host) || !chosen_.contains(i)) continue;
      const bool fixed = open_[i].contains(exam_.nodes[i].base_port);
      for (const std::string& host : exam_.probes->addresses(i))
        doors.push_back({i, host, fixed ? exam_.nodes[i].base_port : chosen_[i]});
    }
    attempts = exam_.probes->dial_from_here(doors, exam_.options.worker.on_interrupt);
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      const int port = open_[i].contains(exam_.nodes[i].base_port) ? exam_.nodes[i].base_port : chosen_[i];
      const std::string failed = failures_of(attempts, i, i, port);
      if (!failed.empty())
        exam_.problem("this machine -> " + exam_.name(i), "reach",
                      "a cluster's own connections cannot be made:" + failed,
                      "Open the port on " + exam_.name(i) +
                          " (NodeConfig(base_port=...) says which), or use Cluster(tunnel=True)");
    }
  }

  void check_names() {
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      if (is_alone(i)) continue;
      const std::string& own = exam_.facts[i]["host_name"].string();
      const List& means = exam_.facts[i]["host_name_means"].list();
      if (!exam_.facts[i]["gloo_interface"].is_null()) continue;
      const std::vector<std::string> addresses = exam_.probes->addresses(i);
      const std::string address = addresses.empty() ? "ADDRESS" : addresses.front();
      const std::string cure = "On " + exam_.name(i) + ", in /etc/hosts: \"" + address + " " + own +
                               "\"; or NodeConfig(env={\"GLOO_SOCKET_IFNAME\": \"" +
                               exam_.probes->interface_of(i, address) +
                               "\"}). cluster.training_group() does the latter by itself";
      if (means.empty()) {
        exam_.warning(exam_.name(i), "name",
                      "its own name, " + own + ", means nothing there, and Gloo announces itself by it", cure);
        continue;
      }
      const std::string& meant = means.front().string();
      if (network::is_loopback(meant))
        exam_.problem(
            exam_.name(i), "name",
            "its own name, " + own + ", means " + meant +
                " there, a loopback address. Gloo announces itself by it, and the other nodes would look for it on "
                "themselves",
            cure);
      else if (std::ranges::find(addresses, meant) == addresses.end())
        exam_.problem(exam_.name(i), "name",
                      "its own name, " + own + ", means " + meant +
                          " there, which is not an address of that node. Gloo announces itself by it",
                      cure);
    }
    check_names_elsewhere();
  }

  // All nodes are on one machine, which finds itself by whatever its name means.
  [[nodiscard]] bool is_alone(std::size_t node) {
    for (std::size_t other = 0; other < exam_.nodes.size(); ++other)
      if (!exam_.probes->same_machine(node, other)) return false;
    return true;
  }

  // What each node takes the others' names for, should one be a master_addr.
  void check_names_elsewhere() {
    std::map<std::string, std::vector<std::size_t>> hosts;  // which nodes have the name
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i)
      if (!is_local(exam_.nodes[i].host)) hosts[host_of(exam_.nodes[i].host)].push_back(i);
    std::vector<double> slowest_s(exam_.nodes.size(), 0);
    for (const auto& [host, owners] : hosts) {
      std::map<std::size_t, Value> answers = exam_.probes->ask_all({{"cmd", "resolve"}, {"host", host}});
      for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
        slowest_s[i] = std::max(slowest_s[i], answers[i]["seconds"].real());
        const List& means = answers[i]["found"].list();
        if (means.empty() || !network::is_loopback(means.front().string()) || network::is_loopback(host)) continue;
        if (std::ranges::any_of(owners, [&](std::size_t owner) { return exam_.probes->same_machine(i, owner); }))
          continue;
        exam_.problem(exam_.name(i), "name",
                      "the name " + host + " means " + means.front().string() + " on " + exam_.name(i) +
                          ", a loopback address: whoever looks for " + exam_.name(owners.front()) + " there finds " +
                          exam_.name(i),
                      "Correct it in /etc/hosts on " + exam_.name(i) + ", or name nodes by their addresses");
      }
    }
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i)
      if (slowest_s[i] > slow_lookup_s)
        exam_.warning(exam_.name(i), "name",
                      "looking up a name takes " + std::to_string(static_cast<int>(slowest_s[i])) + " s there",
                      "See /etc/resolv.conf on " + exam_.name(i) + ": a name server does not answer");
  }

  Examination& exam_;
  std::map<std::size_t, std::set<int>> open_;  // by node: ports in question on which it listens now
  std::map<std::size_t, int> chosen_;          // and one of the system's choice
  std::vector<NodeProbes::Attempt> attempts_;
};

}  // namespace

void check_network(Examination& examination) { NetworkCheck(examination).run(); }

}  // namespace miniray
