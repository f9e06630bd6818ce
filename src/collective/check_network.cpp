// The part of check() that looks at the network: every node must reach every other node, by the names and on the ports
// that training will use.
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
    check_connections();
    check_connections_from_here();
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
        // A node earlier in the list may hold the port for this check. That is a problem only if both are to listen.
        const bool is_base = port == exam_.nodes[i].base_port && !std::ranges::count(exam_.what.ports, port);
        if (const std::optional<std::size_t> other = neighbour_with(i, port)) {
          if (exam_.nodes[*other].base_port == port && exam_.nodes[i].base_port == port && exam_.what.base_ports)
            exam_.problem(exam_.name(i), "port",
                          "it is on the same machine as " + exam_.name(*other) + ", and both have the base_port " +
                              std::to_string(port),
                          "Give one of them another base_port, or 0 for any free port");
          continue;
        }
        exam_.problem(
            exam_.name(i), "port", "the port " + std::to_string(port) + " " + answer["error"].string(),
            is_base ? "End that process, or give NodeConfig another base_port, or 0 for any free port"
                    : "End that process, or choose another master_port; cluster.training_group() takes the next free "
                      "port by itself");
      }
      const Value any = exam_.probes->ask(i, {{"cmd", "listen"}, {"port", 0}});
      if (any.find("port") != nullptr) chosen_[i] = static_cast<int>(any["port"].integer());
    }
  }

  // Returns an earlier node on the same machine whose probe holds the port for this check.
  [[nodiscard]] std::optional<std::size_t> neighbour_with(std::size_t node, int port) {
    for (std::size_t other = 0; other < node; ++other)
      if (open_[other].contains(port) && exam_.probes->same_machine(node, other)) return other;
    return std::nullopt;
  }

  void check_connections() {
    std::vector<std::size_t> all;
    std::vector<NodeProbes::Endpoint> endpoints;
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      all.push_back(i);
      for (const std::string& host : exam_.probes->addresses(i)) {
        for (const int port : open_[i]) endpoints.push_back({i, host, port});
        if (chosen_.contains(i)) endpoints.push_back({i, host, chosen_[i]});
      }
    }
    attempts_ = exam_.probes->dial(all, endpoints);
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
                        std::string(some ? "not all ports can be reached:" : "no port can be reached:") + failed,
                        cure_for_firewall(to, source_of(from)));
      }
      if (exam_.nodes.size() > 1 && exam_.probes->addresses(to).empty())
        exam_.problem(exam_.name(to), "reach", "it has only loopback addresses, so no other node can reach it",
                      "Bring a network interface up; `ip address` on " + exam_.name(to) + " shows them");
    }
  }

  // Returns the failed attempts; an empty text if one address of the node is enough to reach the port.
  [[nodiscard]] std::string failures_of(const std::vector<NodeProbes::Attempt>& attempts, std::size_t from,
                                        std::size_t to, int port) {
    std::string failed;
    for (const NodeProbes::Attempt& attempt : attempts) {
      if (attempt.from != from || attempt.endpoint.node != to || attempt.endpoint.port != port) continue;
      if (attempt.outcome.empty()) return {};
      failed += "\n    " + describe(attempt) + (port == chosen_[to] ? " (a port that the system chose)" : "");
    }
    return failed;
  }

  [[nodiscard]] std::string source_of(std::size_t node) {
    const std::vector<std::string> sources = exam_.probes->addresses(node);
    return sources.empty() ? exam_.name(node) : sources.front();
  }

  [[nodiscard]] std::string cure_for_firewall(std::size_t to, const std::string& source) {
    const char* iptables = source.find(':') != std::string::npos ? "ip6tables" : "iptables";
    return "On " + exam_.name(to) + ": sudo ufw allow from " + source + " (or: sudo " + iptables + " -I INPUT -s " +
           source + " -j ACCEPT). Open all ports, because NCCL and Gloo use ports that the system chooses";
  }

  // MiniRay's own connections come from this machine.
  void check_connections_from_here() {
    if (exam_.options.tunnel) return;
    std::vector<NodeProbes::Endpoint> endpoints;
    std::vector<NodeProbes::Attempt> attempts;
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      if (is_local(exam_.nodes[i].host) || !chosen_.contains(i)) continue;
      const bool fixed = open_[i].contains(exam_.nodes[i].base_port);
      for (const std::string& host : exam_.probes->addresses(i))
        endpoints.push_back({i, host, fixed ? exam_.nodes[i].base_port : chosen_[i]});
    }
    attempts = exam_.probes->dial_from_here(endpoints, exam_.options.worker.on_interrupt);
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      const int port = open_[i].contains(exam_.nodes[i].base_port) ? exam_.nodes[i].base_port : chosen_[i];
      const std::string failed = failures_of(attempts, i, i, port);
      if (!failed.empty())
        exam_.problem(
            "this machine -> " + exam_.name(i), "reach",
            "the coordinator cannot connect to the node's workers:" + failed,
            "Open the port on " + exam_.name(i) + " (NodeConfig(base_port=...) sets it), or use Cluster(tunnel=True)");
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
      const std::string cure = "On " + exam_.name(i) + ", put \"" + address + " " + own +
                               "\" into /etc/hosts; or set NodeConfig(env={\"GLOO_SOCKET_IFNAME\": \"" +
                               exam_.probes->interface_of(i, address) +
                               "\"}), which cluster.training_group() does by itself";
      if (means.empty()) {
        exam_.warning(exam_.name(i), "name",
                      "its own name, " + own + ", has no address there, but Gloo uses the name to announce itself",
                      cure);
        continue;
      }
      const std::string& meant = means.front().string();
      if (network::is_loopback(meant))
        exam_.problem(exam_.name(i), "name",
                      "its own name, " + own + ", stands for " + meant +
                          " there, a loopback address. Gloo announces itself with that address, so the other nodes "
                          "would look for "
                          "it on themselves",
                      cure);
      else if (std::ranges::find(addresses, meant) == addresses.end())
        exam_.problem(exam_.name(i), "name",
                      "its own name, " + own + ", stands for " + meant +
                          " there, which is not an address of that node. Gloo announces itself with that address",
                      cure);
    }
    check_names_elsewhere();
  }

  // Returns true if all nodes are on one machine. A machine reaches itself at any address that its name stands for.
  [[nodiscard]] bool is_alone(std::size_t node) {
    for (std::size_t other = 0; other < exam_.nodes.size(); ++other)
      if (!exam_.probes->same_machine(node, other)) return false;
    return true;
  }

  // Checks what the nodes' names stand for on the other nodes, because one of them may be the master_addr.
  void check_names_elsewhere() {
    std::map<std::string, std::vector<std::size_t>> hosts;  // the nodes with this name
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
                      "the name " + host + " stands for " + means.front().string() + " on " + exam_.name(i) +
                          ", a loopback address: a process there that connects to " + exam_.name(owners.front()) +
                          " reaches " + exam_.name(i),
                      "Correct the name in /etc/hosts on " + exam_.name(i) + ", or name nodes by their addresses");
      }
    }
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i)
      if (slowest_s[i] > slow_lookup_s)
        exam_.warning(exam_.name(i), "name",
                      "looking up a name takes " + std::to_string(static_cast<int>(slowest_s[i])) +
                          " s there, because a name server does not answer",
                      "Correct the name servers in /etc/resolv.conf on " + exam_.name(i));
  }

  Examination& exam_;
  std::map<std::size_t, std::set<int>> open_;  // by node: the ports to check on which its probe listens now
  std::map<std::size_t, int> chosen_;          // by node: a port that the system chose, on which its probe listens too
  std::vector<NodeProbes::Attempt> attempts_;
};

}  // namespace

void check_network(Examination& examination) { NetworkCheck(examination).run(); }

}  // namespace miniray
