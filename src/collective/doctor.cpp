#include "miniray/doctor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "base/system.hpp"
#include "cluster/gpu_plan.hpp"
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
constexpr double language_timeout_s = 300;  // torch may be on a slow disk

std::string host_of(const std::string& ssh_host) {
  const std::size_t at = ssh_host.find('@');
  return at == std::string::npos ? ssh_host : ssh_host.substr(at + 1);
}

std::string text_of(const Value& value) { return value.is_null() ? "none" : value.string(); }

class Doctor {
 public:
  Doctor(std::vector<NodeConfig> nodes, const ClusterOptions& options, const CheckOptions& what)
      : nodes_(std::move(nodes)), options_(options), what_(what) {}

  CheckReport examine() {
    bring_up();
    if (!nodes_.empty()) {
      probes_ = std::make_unique<NodeProbes>(*cluster_);
      for (std::size_t i = 0; i < nodes_.size(); ++i) facts_.push_back(probes_->facts(i));
      ask_languages();
      check_versions();
      check_ports();
      check_ways();
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
      probes_.reset();
      cluster_->stop();
    }
    std::ranges::stable_sort(report_.findings, {}, &Finding::severity);
    return std::move(report_);
  }

 private:
  [[nodiscard]] const std::string& name(std::size_t node) const { return probes_->name(node); }
  void problem(const std::string& node, const char* check, std::string what, std::string cure) {
    report_.findings.push_back({Finding::Severity::problem, node, check, std::move(what), std::move(cure)});
  }
  void warning(const std::string& node, const char* check, std::string what, std::string cure) {
    report_.findings.push_back({Finding::Severity::warning, node, check, std::move(what), std::move(cure)});
  }

  // With those that can be had.
  void bring_up() {
    while (!nodes_.empty()) {
      std::vector<NodeConfig> configs = nodes_;
      for (NodeConfig& config : configs) {
        config.base_port = 0;
        config.num_workers = 1;
        config.gpus_per_worker = 0;
      }
      try {
        cluster_ = std::make_unique<Cluster>(configs, options_);
        cluster_->launch_servers();
        return;
      } catch (const ClusterError& error) {
        const std::vector<std::string> names = node_names(configs);
        std::vector<NodeConfig> left;
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
          const auto failed = std::ranges::find(error.failures(), names[i], &ClusterError::Failure::node);
          if (failed == error.failures().end()) {
            left.push_back(nodes_[i]);
            continue;
          }
          problem(names[i], "start", failed->why, "");
          report_.failed_nodes.push_back(names[i]);
        }
        nodes_ = std::move(left);
      }
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
      } catch (const Error& error) {  // a library that crashes when it is loaded
        problem(name(i), "version", error.what(), "");
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
    compare("torch", "torch", false, "pip install torch==VERSION, the same on all nodes");
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
        if (shares_machine_with_owner(i, port)) continue;
        problem(name(i), "port", answer["error"].string(),
                is_base ? "Or give NodeConfig another base_port; 0 is any that is free"
                        : "Or choose another master_port; cluster.training_group() takes the next that is free");
      }
      const Value any = probes_->ask(i, {{"cmd", "listen"}, {"port", 0}});
      if (any.find("port") != nullptr) chosen_[i] = static_cast<int>(any["port"].integer());
    }
  }

  // Two nodes of the list on one machine: the first has the port, for this check.
  [[nodiscard]] bool shares_machine_with_owner(std::size_t node, int port) {
    for (std::size_t other = 0; other < node; ++other)
      if (open_[other].contains(port) && probes_->same_machine(node, other)) return true;
    return false;
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
        for (const int port : ports) failed += failures_of(from, to, port);
        if (!failed.empty())
          problem(name(from) + " -> " + name(to), "reach", "cannot be reached:" + failed, cure_for_way(from, to));
      }
      if (nodes_.size() > 1 && probes_->addresses(to).empty())
        problem(name(to), "reach", "has no address but its own loopback's",
                "See `ip address` there: bring a network interface up");
    }
  }

  // Empty if the port is reached at one of the addresses at least.
  [[nodiscard]] std::string failures_of(std::size_t from, std::size_t to, int port) const {
    std::string failed;
    for (const NodeProbes::Attempt& attempt : attempts_) {
      if (attempt.from != from || attempt.door.node != to || attempt.door.port != port) continue;
      if (attempt.outcome.empty()) return {};
      failed += "\n    " + describe(attempt);
    }
    return failed;
  }

  [[nodiscard]] std::string cure_for_way(std::size_t from, std::size_t to) {
    const std::vector<std::string> sources = probes_->addresses(from);
    const std::string source = sources.empty() ? name(from) : sources.front();
    return "On " + name(to) + ": sudo ufw allow from " + source + " (or: sudo iptables -I INPUT -s " + source +
           " -j ACCEPT); NCCL and Gloo use ports of their own choice too";
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
      if (means.empty())
        warning(name(i), "name", "its own name, " + own + ", means nothing there, and Gloo announces itself by it",
                cure);
      else if (is_loopback(means.front().string()))
        problem(name(i), "name",
                "its own name, " + own + ", means " + means.front().string() +
                    " there, a loopback address. Gloo announces itself by it, and the other nodes would look for it on "
                    "themselves",
                cure);
    }
    check_names_elsewhere();
  }

  // What each node takes the others' names for, should one be a master_addr.
  void check_names_elsewhere() {
    List hosts;
    for (const NodeConfig& node : nodes_) hosts.emplace_back(host_of(node.host));
    const std::vector<Value> answers = probes_->ask_all({{"cmd", "resolve"}, {"hosts", Value(hosts)}});
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (std::size_t other = 0; other < nodes_.size(); ++other) {
        const List& means = answers[i]["found"].list()[other].list();
        if (means.empty() || probes_->same_machine(i, other) || !is_loopback(means.front().string())) continue;
        problem(name(i), "name",
                "the name " + hosts[other].string() + " means " + means.front().string() + " on " + name(i) +
                    ", a loopback address: whoever looks for " + name(other) + " there finds " + name(i),
                "Correct it in /etc/hosts on " + name(i) + ", or name nodes by their addresses");
      }
    }
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
        problem(name(i), "gpu", error.what(), "");
      }
      if (nodes_[i].gpus_per_worker > 0 && machine.gpus.empty())
        warning(name(i), "gpu",
                "has no GPU, so its workers run without: " +
                    (machine.notes.empty() ? "none is visible" : machine.notes.front()),
                "See `nvidia-smi` on " + name(i));
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
        warning(name(i), "limit", "a process may have " + std::to_string(files) + " files open",
                "On " + name(i) + ": ulimit -n 65536, or nofile in /etc/security/limits.conf");
      if (facts_[i]["infiniband"].boolean() && locked != UINT64_MAX)
        problem(name(i), "limit",
                "a process may lock " + std::to_string(locked / limits::kib) +
                    " KiB of memory, and InfiniBand needs it unlimited",
                "On " + name(i) + ": \"* - memlock unlimited\" in /etc/security/limits.conf, then log in again");
    }
  }

  std::vector<NodeConfig> nodes_;  // those that came up
  const ClusterOptions& options_;
  const CheckOptions& what_;
  CheckReport report_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<NodeProbes> probes_;
  std::vector<Value> facts_, languages_;
  std::map<std::size_t, std::set<int>> open_;  // by node: ports in question on which it listens now
  std::map<std::size_t, int> chosen_;          // and one of the system's choice
  std::vector<NodeProbes::Attempt> attempts_;
};

const char* name_of(Finding::Severity severity) {
  return severity == Finding::Severity::problem ? "problem" : "warning";
}

std::string describe_node(const Value& node) {
  const Machine machine = machine_from(node["machine"]);
  std::string text = node["node"].string() + ": ";
  if (const Value* language = node.find("language")) {
    if (const Value* python = language->find("python")) text += "Python " + text_of(*python) + ", ";
    if (const Value* torch = language->find("torch"))
      text += torch->is_null() ? "no torch, " : "torch " + torch->string() + ", ";
    if (const Value* nccl = language->find("nccl"); nccl != nullptr && !nccl->is_null())
      text += "NCCL " + nccl->string() + ", ";
  }
  std::size_t cpus = 0;
  for (const NumaNode& numa : machine.numa_nodes) cpus += numa.cpus.size();
  text += machine.gpus.empty() ? "no GPU"
                               : std::to_string(machine.gpus.size()) + " x " + machine.gpus.front().name + " (driver " +
                                     machine.driver_version + ")";
  if (cpus > 0)
    text += ", " + std::to_string(cpus) + " CPUs on " + std::to_string(machine.numa_nodes.size()) +
            (machine.numa_nodes.size() == 1 ? " NUMA node" : " NUMA nodes");
  return text;
}

}  // namespace

bool CheckReport::healthy() const {
  return std::ranges::none_of(findings,
                              [](const Finding& each) { return each.severity == Finding::Severity::problem; });
}

std::string CheckReport::text() const {
  std::string text;
  for (const Value& node : nodes) text += describe_node(node) + "\n";
  for (const Finding& finding : findings) {
    text += std::string("\n") + name_of(finding.severity) + " (" + finding.check + "), " + finding.node + ": " +
            finding.what + "\n";
    if (!finding.cure.empty()) text += "  -> " + finding.cure + "\n";
  }
  const auto problems = std::ranges::count(findings, Finding::Severity::problem, &Finding::severity);
  const auto warnings = static_cast<std::ptrdiff_t>(findings.size()) - problems;
  const std::size_t count = nodes.size() + failed_nodes.size();
  text += "\n" + std::to_string(count) + (count == 1 ? " node: " : " nodes: ") +
          (problems == 0 ? "no problem" : std::to_string(problems) + (problems == 1 ? " problem" : " problems")) +
          (warnings == 0 ? "" : ", " + std::to_string(warnings) + (warnings == 1 ? " warning" : " warnings")) + "\n";
  return text;
}

Value CheckReport::value() const {
  List all;
  for (const Finding& finding : findings)
    all.push_back({{"severity", name_of(finding.severity)},
                   {"node", finding.node},
                   {"check", finding.check},
                   {"what", finding.what},
                   {"cure", finding.cure}});
  List failed;
  for (const std::string& node : failed_nodes) failed.emplace_back(node);
  return {{"healthy", healthy()},
          {"findings", Value(std::move(all))},
          {"nodes", Value(List(nodes.begin(), nodes.end()))},
          {"failed_nodes", Value(std::move(failed))}};
}

CheckReport check(const std::vector<NodeConfig>& nodes, const ClusterOptions& options, const CheckOptions& what) {
  if (nodes.empty()) throw UsageError("there is no node to check");
  for (const int port : what.ports)
    if (port < 1 || port > 65535)
      throw UsageError("a port to check is a number from 1 to 65535, not " + std::to_string(port));
  return Doctor(nodes, options, what).examine();
}

}  // namespace miniray
