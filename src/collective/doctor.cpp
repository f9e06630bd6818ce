#include "miniray/doctor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/system.hpp"
#include "cluster/gpu_plan.hpp"
#include "cluster/launch_command.hpp"
#include "cluster/node_config.hpp"
#include "cluster/probe.hpp"
#include "collective/node_probes.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr double clock_difference_s_max = 0.5;
constexpr std::uint64_t shared_memory_bytes_min = 512 * limits::mib;
constexpr std::uint64_t open_files_min = 4096;
constexpr int clock_rounds = 3;
constexpr double slow_lookup_s = 2;
constexpr double language_timeout_s = 300;  // torch may be on a slow disk

std::string host_of(const std::string& ssh_host) {
  const std::size_t at = ssh_host.find('@');
  return at == std::string::npos ? ssh_host : ssh_host.substr(at + 1);
}

std::string text_of(const Value& value) { return value.is_null() ? "none" : value.string(); }

class Doctor {
 public:
  Doctor(std::vector<NodeConfig> nodes, const ClusterOptions& options, const CheckOptions& what)
      : nodes_(std::move(nodes)), names_(node_names(nodes_)), options_(options), what_(what) {}

  CheckReport examine() {
    while (!nodes_.empty()) {
      try {
        if (bring_up()) {
          examine_nodes();
          break;
        }
      } catch (const ProbeLost& lost) {  // all is examined anew, without that node
        const std::size_t node = lost.node;
        findings_.clear();
        drop(node, "lost", "it was lost in the middle of the check: " + std::string(lost.what()),
             "See whether " + names_[node] + " is up: ssh " + nodes_[node].host + " uptime");
      }
    }
    probes_.reset();
    if (cluster_) cluster_->stop();
    report_.findings.insert(report_.findings.end(), findings_.begin(), findings_.end());
    std::vector<Finding> sorted;
    for (const Finding::Severity severity : {Finding::Severity::problem, Finding::Severity::warning})
      std::ranges::copy_if(report_.findings, std::back_inserter(sorted),
                           [&](const Finding& each) { return each.severity == severity; });
    report_.findings = std::move(sorted);
    return std::move(report_);
  }

 private:
  [[nodiscard]] const std::string& name(std::size_t node) const { return names_[node]; }
  void problem(const std::string& node, const char* check, std::string what, std::string cure) {
    findings_.push_back({Finding::Severity::problem, node, check, std::move(what), std::move(cure)});
  }
  void warning(const std::string& node, const char* check, std::string what, std::string cure) {
    findings_.push_back({Finding::Severity::warning, node, check, std::move(what), std::move(cure)});
  }
  // A node that is not examined any further.
  void drop(std::size_t node, const char* check, std::string what, std::string cure) {
    report_.findings.push_back({Finding::Severity::problem, names_[node], check, std::move(what), std::move(cure)});
    report_.failed_nodes.push_back(names_[node]);
    nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(node));
    names_.erase(names_.begin() + static_cast<std::ptrdiff_t>(node));
  }

  // Servers and probes on all nodes; if some fail, these are dropped, and it is false. The talk with them goes through
  // ssh where that works, so that a firewall is a finding, and no obstacle.
  bool bring_up() {
    std::vector<NodeConfig> configs = nodes_;
    for (NodeConfig& config : configs) {
      config.base_port = 0;
      config.num_workers = 1;
      config.gpus_per_worker = 0;
    }
    const std::vector<std::string> called = node_names(configs);
    for (const bool tunnel : {true, options_.tunnel}) {
      try {
        probes_.reset();
        ClusterOptions options = options_;
        options.tunnel = tunnel;
        cluster_ = std::make_unique<Cluster>(configs, options);
        cluster_->launch_servers();
        try {
          probes_ = std::make_unique<NodeProbes>(*cluster_);
          return true;
        } catch (const ClusterError&) {
          if (tunnel != options_.tunnel) continue;
          throw;
        }
      } catch (const ClusterError& error) {
        for (std::size_t i = nodes_.size(); i-- > 0;) {
          const auto failed = std::ranges::find(error.failures(), called[i], &ClusterError::Failure::node);
          if (failed != error.failures().end()) drop(i, "start", failed->why, "");
        }
        return false;
      }
    }
    return false;
  }

  void examine_nodes() {
    facts_.clear();
    languages_.clear();
    open_.clear();
    chosen_.clear();
    for (std::size_t i = 0; i < nodes_.size(); ++i) facts_.push_back(probes_->facts(i));
    ask_languages();
    check_versions();
    check_ports();
    check_ways();
    check_ways_from_here();
    check_names();
    check_clocks();
    check_gpus();
    check_room();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Value about = facts_[i];
      about["node"] = name(i);
      if (!languages_.empty()) about["language"] = languages_[i];
      report_.nodes.push_back(std::move(about));
    }
  }

  void ask_languages() {
    if (what_.language_probe.empty()) return;
    std::vector<Worker> workers;
    try {
      workers = cluster_->connect_to_servers(what_.language_probe);
    } catch (const ClusterError& error) {
      for (const ClusterError::Failure& failure : error.failures()) problem(failure.node, "version", failure.why, "");
      return;
    }
    for (std::size_t i = 0; i < workers.size(); ++i) {
      try {
        languages_.push_back(workers[i].recv({{}, language_timeout_s}));
      } catch (const WorkerDied& died) {
        problem(name(i), "version", "torch crashes when it is imported: " + died.certificate().cause(),
                "See `python -c 'import torch'` on " + name(i));
        languages_.emplace_back(Map{});
      } catch (const Error& error) {
        problem(name(i), "version", "its Python does not tell of itself: " + std::string(error.what()), "");
        languages_.emplace_back(Map{});
      }
    }
  }

  // A version, or null, of each node that has told of it.
  [[nodiscard]] std::map<std::size_t, Value> versions_of(const char* what) const {
    std::map<std::size_t, Value> versions;
    for (std::size_t i = 0; i < languages_.size(); ++i)
      if (const Value* version = languages_[i].find(what)) versions[i] = *version;
    return versions;
  }

  // Of those that some node has; the local part of a version ("+cpu") is no part of what pip is told.
  [[nodiscard]] std::string newest_torch() const {
    std::string newest;
    for (const auto& [node, version] : versions_of("torch"))
      if (!version.is_null()) newest = std::max(newest, version.string().substr(0, version.string().find('+')));
    return newest;
  }

  static std::string up_to_minor(const std::string& version) {
    const std::size_t first = version.find('.');
    return version.substr(0, version.find('.', first == std::string::npos ? 0 : first + 1));
  }

  // "3.11.2 on node1, node3; 3.12.1 on node2".
  [[nodiscard]] std::string who_has_which(const std::map<std::size_t, Value>& versions) const {
    std::map<std::string, std::string> having;
    for (const auto& [node, version] : versions) {
      std::string& names = having[text_of(version)];
      names += (names.empty() ? "" : ", ") + name(node);
    }
    std::string text;
    for (const auto& [version, names] : having) text += (text.empty() ? "" : "; ") + version + " on " + names;
    return text;
  }

  void check_versions() {
    compare("python", "Python", true,
            "Use the same on all: NodeConfig(python_bin=...) or `miniray doctor --python ...` says which");
    compare("torch", "torch", false,
            "Install the same on all nodes, e.g. `python -m pip install torch==" + newest_torch() + "`");
    compare("nccl", "NCCL", false, "Install the same build of torch on all nodes; NCCL comes with it");
    compare("cuda", "torch's CUDA", false, "Install the same build of torch on all nodes");
    for (const auto& [node, error] : versions_of("torch_error"))
      if (!error.is_null())
        problem(name(node), "version", "torch is there, and cannot be imported: " + error.string(),
                "See `" + languages_[node]["executable"].string() + " -c 'import torch'` on " + name(node));
  }

  void compare(const char* key, const char* called, bool patch_may_differ, const std::string& cure) {
    const std::map<std::size_t, Value> versions = versions_of(key);
    std::set<std::string> all, minors;
    for (const auto& [node, version] : versions) {
      all.insert(text_of(version));
      minors.insert(up_to_minor(text_of(version)));
    }
    if (all.size() < 2) return;
    if (std::string_view(key) == "torch" && all.contains("none")) {
      for (const auto& [node, version] : versions)
        if (version.is_null())
          problem(name(node), "version", "torch is missing, and the other nodes have it: " + who_has_which(versions),
                  "On " + name(node) + ": " + languages_[node]["executable"].string() + " -m pip install torch");
      all.erase("none");
      if (all.size() < 2) return;
    }
    const std::string what = std::string("versions of ") + called + " differ: " + who_has_which(versions);
    if (patch_may_differ && minors.size() == 1)
      warning("all", "version", what, cure);
    else
      problem("all", "version", what, cure);
  }

  void check_ports() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      std::set<int> wanted(what_.ports.begin(), what_.ports.end());
      if (what_.base_ports && nodes_[i].base_port > 0) wanted.insert(nodes_[i].base_port);
      for (const int port : wanted) {
        const Value answer = probes_->ask(i, {{"cmd", "listen"}, {"port", port}});
        if (answer.find("port") != nullptr) {
          open_[i].insert(port);
          continue;
        }
        const bool is_base = port == nodes_[i].base_port && !std::ranges::count(what_.ports, port);
        if (const std::optional<std::size_t> other = neighbour_with(i, port)) {
          if (nodes_[*other].base_port == port && nodes_[i].base_port == port && what_.base_ports)
            problem(name(i), "port",
                    "it is on the same machine as " + name(*other) + ", and both want the base_port " +
                        std::to_string(port),
                    "Give one of them another base_port; 0 is any that is free");
          continue;
        }
        const std::string& error = answer["error"].string();
        problem(name(i), "port", error.substr(0, error.find(". End that")),
                is_base
                    ? "End it, or give NodeConfig another base_port; 0 is any that is free"
                    : "End it, or choose another master_port; cluster.training_group() takes the next that is free");
      }
      const Value any = probes_->ask(i, {{"cmd", "listen"}, {"port", 0}});
      if (any.find("port") != nullptr) chosen_[i] = static_cast<int>(any["port"].integer());
    }
  }

  // Another node of the list, on the same machine, has the port for this check.
  [[nodiscard]] std::optional<std::size_t> neighbour_with(std::size_t node, int port) {
    for (std::size_t other = 0; other < node; ++other)
      if (open_[other].contains(port) && probes_->same_machine(node, other)) return other;
    return std::nullopt;
  }

  void check_ways() {
    std::vector<std::size_t> all;
    std::vector<NodeProbes::Door> doors;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      all.push_back(i);
      for (const std::string& host : probes_->addresses(i)) {
        for (const int port : open_[i]) doors.push_back({i, host, port});
        if (chosen_.contains(i)) doors.push_back({i, host, chosen_[i]});
      }
    }
    attempts_ = probes_->call(all, doors);
    for (const std::size_t to : all) {
      for (const std::size_t from : all) {
        if (probes_->same_machine(from, to)) continue;
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
          problem(name(from) + " -> " + name(to), "reach",
                  std::string(some ? "not all ports can be reached:" : "cannot be reached:") + failed,
                  cure_for_way(to, source_of(from)));
      }
      if (nodes_.size() > 1 && probes_->addresses(to).empty())
        problem(name(to), "reach", "has no address but its own loopback's",
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
    const std::vector<std::string> sources = probes_->addresses(node);
    return sources.empty() ? name(node) : sources.front();
  }

  [[nodiscard]] std::string cure_for_way(std::size_t to, const std::string& source) {
    const char* iptables = source.find(':') != std::string::npos ? "ip6tables" : "iptables";
    return "On " + name(to) + ": sudo ufw allow from " + source + " (or: sudo " + iptables + " -I INPUT -s " + source +
           " -j ACCEPT); NCCL and Gloo use ports of their own choice too";
  }

  // MiniRay's own connections come from this machine.
  void check_ways_from_here() {
    if (options_.tunnel) return;
    std::vector<NodeProbes::Door> doors;
    std::vector<NodeProbes::Attempt> attempts;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (is_local(nodes_[i].host) || !chosen_.contains(i)) continue;
      const bool fixed = open_[i].contains(nodes_[i].base_port);
      for (const std::string& host : probes_->addresses(i))
        doors.push_back({i, host, fixed ? nodes_[i].base_port : chosen_[i]});
    }
    attempts = probes_->call_from_here(doors, options_.worker.on_interrupt);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const int port = open_[i].contains(nodes_[i].base_port) ? nodes_[i].base_port : chosen_[i];
      const std::string failed = failures_of(attempts, i, i, port);
      if (!failed.empty())
        problem("this machine -> " + name(i), "reach", "a cluster's own connections cannot be made:" + failed,
                "Open the port on " + name(i) + " (NodeConfig(base_port=...) says which), or use Cluster(tunnel=True)");
    }
  }

  void check_names() {
    for (std::size_t i = 0; i < nodes_.size() && nodes_.size() > 1; ++i) {
      const std::string& own = facts_[i]["host_name"].string();
      const List& means = facts_[i]["host_name_means"].list();
      if (!facts_[i]["gloo_interface"].is_null()) continue;
      const std::vector<std::string> addresses = probes_->addresses(i);
      const std::string address = addresses.empty() ? "ADDRESS" : addresses.front();
      const std::string cure = "On " + name(i) + ", in /etc/hosts: \"" + address + " " + own +
                               "\"; or NodeConfig(env={\"GLOO_SOCKET_IFNAME\": \"" + interface_of(i, address) +
                               "\"}). cluster.training_group() does the latter by itself";
      if (means.empty()) {
        warning(name(i), "name", "its own name, " + own + ", means nothing there, and Gloo announces itself by it",
                cure);
        continue;
      }
      const std::string& meant = means.front().string();
      if (is_loopback(meant))
        problem(name(i), "name",
                "its own name, " + own + ", means " + meant +
                    " there, a loopback address. Gloo announces itself by it, and the other nodes would look for it on "
                    "themselves",
                cure);
      else if (std::ranges::find(addresses, meant) == addresses.end())
        problem(name(i), "name",
                "its own name, " + own + ", means " + meant +
                    " there, which is not an address of that node. Gloo announces itself by it",
                cure);
    }
    check_names_elsewhere();
  }

  // What each node takes the others' names for, should one be a master_addr.
  void check_names_elsewhere() {
    std::map<std::string, std::vector<std::size_t>> hosts;  // which nodes have the name
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (!is_local(nodes_[i].host)) hosts[host_of(nodes_[i].host)].push_back(i);
    std::vector<double> slowest_s(nodes_.size(), 0);
    for (const auto& [host, owners] : hosts) {
      std::map<std::size_t, Value> answers = probes_->ask_all({{"cmd", "resolve"}, {"host", host}});
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        slowest_s[i] = std::max(slowest_s[i], answers[i]["seconds"].real());
        const List& means = answers[i]["found"].list();
        if (means.empty() || !is_loopback(means.front().string()) || is_loopback(host)) continue;
        if (std::ranges::any_of(owners, [&](std::size_t owner) { return probes_->same_machine(i, owner); })) continue;
        problem(name(i), "name",
                "the name " + host + " means " + means.front().string() + " on " + name(i) +
                    ", a loopback address: whoever looks for " + name(owners.front()) + " there finds " + name(i),
                "Correct it in /etc/hosts on " + name(i) + ", or name nodes by their addresses");
      }
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (slowest_s[i] > slow_lookup_s)
        warning(name(i), "name",
                "looking up a name takes " + std::to_string(static_cast<int>(slowest_s[i])) + " s there",
                "See /etc/resolv.conf on " + name(i) + ": a name server does not answer");
  }

  static bool is_loopback(const std::string& host) { return host.starts_with("127.") || host == "::1"; }

  [[nodiscard]] std::string interface_of(std::size_t node, const std::string& address) const {
    for (const Value& interface : facts_[node]["interfaces"].list())
      if (interface["host"].string() == address) return interface["name"].string();
    return "eth0";
  }

  // The time there, less the time here when half of the question's way was done; the quickest of several counts.
  [[nodiscard]] double clock_offset_s(std::size_t node) {
    double offset_s = 0, best_s = INFINITY;
    for (int round = 0; round < clock_rounds; ++round) {
      const std::int64_t before_ns = system::time_of_day_ns();
      const std::int64_t there_ns = probes_->ask(node, {{"cmd", "clock"}})["now_ns"].integer();
      const std::int64_t after_ns = system::time_of_day_ns();
      const double took_s = static_cast<double>(after_ns - before_ns) / 1e9;
      if (took_s >= best_s) continue;
      best_s = took_s;
      offset_s = static_cast<double>(there_ns - before_ns) / 1e9 - took_s / 2;
    }
    return offset_s;
  }

  void check_clocks() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const double offset_s = clock_offset_s(i);
      facts_[i]["clock_offset_s"] = offset_s;
      if (std::abs(offset_s) <= clock_difference_s_max) continue;
      std::array<char, 120> text{};
      std::snprintf(text.data(), text.size(), "its clock is %.1f s %s this machine's", std::abs(offset_s),
                    offset_s > 0 ? "ahead of" : "behind");
      warning(name(i), "clock", text.data(), "On " + name(i) + ": sudo timedatectl set-ntp true");
    }
  }

  void check_gpus() {
    std::map<std::string, std::string> drivers;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Machine machine = machine_from(facts_[i]["machine"]);
      if (!machine.driver_version.empty()) drivers[machine.driver_version] += " " + name(i);
      try {
        if (nodes_[i].gpus_per_worker > 0)
          (void)plan_gpus(machine, name(i), nodes_[i].num_workers, nodes_[i].gpus_per_worker, {});
      } catch (const UsageError& error) {
        std::string text = error.what();
        if (text.starts_with(name(i) + " ")) text.erase(0, name(i).size() + 1);
        const std::size_t cure = text.find(". Start fewer");
        problem(name(i), "gpu", text.substr(0, cure), cure == std::string::npos ? "" : text.substr(cure + 2));
      }
      if (nodes_[i].gpus_per_worker > 0 && machine.gpus.empty())
        warning(name(i), "gpu",
                "has no GPU, so its workers run without: " +
                    (machine.notes.empty() ? "none is visible" : machine.notes.front()),
                "See `nvidia-smi` on " + name(i));
      for (const std::string& note : machine.notes)
        if (!machine.gpus.empty()) warning(name(i), "gpu", note, "");
      const Value* cuda = i < languages_.size() ? languages_[i].find("cuda") : nullptr;
      const Value* torch = i < languages_.size() ? languages_[i].find("torch") : nullptr;
      if (!machine.gpus.empty() && cuda != nullptr && cuda->is_null() && torch != nullptr && !torch->is_null())
        problem(name(i), "gpu",
                "has " + std::to_string(machine.gpus.size()) + " GPUs, and its torch (" + torch->string() +
                    ") is built without CUDA",
                "On " + name(i) + ": install a CUDA build of torch");
    }
    if (drivers.size() < 2) return;
    std::string text;
    for (const auto& [version, names] : drivers) text += (text.empty() ? "" : "; ") + version + " on" + names;
    warning("all", "gpu", "versions of the NVIDIA driver differ: " + text, "Install the same driver on all nodes");
  }

  void check_room() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::uint64_t shared = facts_[i]["shared_memory_bytes"].unsigned_integer();
      const std::uint64_t files = facts_[i]["open_files_max"].unsigned_integer();
      const std::uint64_t locked = facts_[i]["locked_memory_bytes_max"].unsigned_integer();
      if (shared < shared_memory_bytes_min)
        warning(name(i), "memory",
                "/dev/shm has " + std::to_string(shared / limits::mib) +
                    " MiB, and NCCL and torch's data loaders need more",
                "On " + name(i) + ": sudo mount -o remount,size=8G /dev/shm (in Docker: run with --shm-size=8g)");
      if (files < open_files_min)
        warning(name(i), "limit",
                "a process may have " + std::to_string(files) + " files open, and data loaders need thousands",
                "On " + name(i) + ": ulimit -n 65536, or nofile in /etc/security/limits.conf");
      if (facts_[i]["infiniband"].boolean() && locked != UINT64_MAX)
        problem(name(i), "limit",
                "a process may lock " + std::to_string(locked / limits::kib) +
                    " KiB of memory, and InfiniBand needs it unlimited",
                "On " + name(i) + ": \"* - memlock unlimited\" in /etc/security/limits.conf, then log in again");
    }
  }

  std::vector<NodeConfig> nodes_;  // those that have not failed
  std::vector<std::string> names_;
  const ClusterOptions& options_;
  const CheckOptions& what_;
  CheckReport report_;
  std::vector<Finding> findings_;  // of those that are being examined
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<NodeProbes> probes_;
  std::vector<Value> facts_, languages_;
  std::map<std::size_t, std::set<int>> open_;  // by node: ports in question on which it listens now
  std::map<std::size_t, int> chosen_;          // and one of the system's choice
  std::vector<NodeProbes::Attempt> attempts_;
};

}  // namespace

CheckReport check(const std::vector<NodeConfig>& nodes, const ClusterOptions& options, const CheckOptions& what) {
  if (nodes.empty()) throw UsageError("there is no node to check");
  for (const NodeConfig& node : nodes) check(node);
  if (what.ports.size() > limits::checked_ports_max)
    throw UsageError("at most " + std::to_string(limits::checked_ports_max) + " ports are checked, not " +
                     std::to_string(what.ports.size()));
  for (const int port : what.ports)
    if (port < 1 || port > 65535)
      throw UsageError("a port to check is a number from 1 to 65535, not " + std::to_string(port));
  return Doctor(nodes, options, what).examine();
}

}  // namespace miniray
