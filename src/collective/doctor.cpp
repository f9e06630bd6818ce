#include "miniray/doctor.hpp"

#include <algorithm>
#include <iterator>
#include <memory>

#include "base/check.hpp"
#include "base/shown_text.hpp"
#include "cluster/node_plan.hpp"
#include "cluster/probe.hpp"
#include "collective/examination.hpp"
#include "launch/launch_command.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr double language_timeout_s = limits::language_answer_ms / 1000.0;

const char* name_of(Finding::Severity severity) {
  return severity == Finding::Severity::problem ? "problem" : "warning";
}

std::string describe_node(const Value& node) {
  const Machine machine = machine_from(node["machine"]);
  std::string text = node["node"].string() + ": ";
  if (const Value* language = node.find("language")) {
    if (const Value* python = language->find("python")) text += "Python " + python->string() + ", ";
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

class Doctor {
 public:
  Doctor(const std::vector<NodeConfig>& nodes, const ClusterOptions& options, const CheckOptions& what)
      : exam_{nodes, node_names(nodes), options, what, nullptr, {}, {}} {}

  CheckReport examine() {
    while (!exam_.nodes.empty()) {
      try {
        if (bring_up()) {
          examine_nodes();
          break;
        }
      } catch (const ProbeFailure& failure) {  // the check starts over without that node
        const std::size_t node = failure.node;
        exam_.findings.clear();
        drop(node, "lost", "it failed in the middle of the check: " + std::string(failure.what()),
             "Check that " + exam_.names[node] + " is up: ssh " + exam_.nodes[node].host + " uptime");
      }
    }
    probes_.reset();
    if (cluster_) cluster_->stop();
    report_.findings.insert(report_.findings.end(), exam_.findings.begin(), exam_.findings.end());
    // Problems come first; otherwise findings keep their order.
    std::vector<Finding> sorted;
    for (const Finding::Severity severity : {Finding::Severity::problem, Finding::Severity::warning})
      std::ranges::copy_if(report_.findings, std::back_inserter(sorted),
                           [&](const Finding& each) { return each.severity == severity; });
    report_.findings = std::move(sorted);
    return std::move(report_);
  }

 private:
  // Reports the node as failed, and leaves it out of the rest of the check.
  void drop(std::size_t node, const char* check, std::string what, std::string cure) {
    report_.findings.push_back(
        {Finding::Severity::problem, exam_.names[node], check, std::move(what), std::move(cure)});
    report_.failed_nodes.push_back(exam_.names[node]);
    exam_.nodes.erase(exam_.nodes.begin() + static_cast<std::ptrdiff_t>(node));
    exam_.names.erase(exam_.names.begin() + static_cast<std::ptrdiff_t>(node));
  }

  // Returns a command with which the user can repeat the failure; its cause is in the finding's text.
  static std::string cure_for_start(const NodeConfig& node) {
    const std::string python = node.python_bin.empty() ? "python3" : quote_for_shell(node.python_bin);
    const std::string command = python + " -c 'import miniray'";
    return "Make this command work: " + (is_local(node.host) ? command : "ssh " + node.host + " \"" + command + "\"");
  }

  static std::string cure_for_language(const std::string& node) {
    return "Make this command work on " + node + ": python3 -c 'import miniray.doctor, torch'";
  }

  // Starts servers and probes on all nodes. If some nodes fail, it drops them and returns false. It tries connections
  // through ssh (a tunnel) first, so that a firewall is a finding and does not stop the check.
  bool bring_up() {
    // The servers of the check use other ports, so that the ports to check stay free.
    std::vector<NodeConfig> configs = exam_.nodes;
    for (NodeConfig& config : configs) {
      config.base_port = 0;
      config.num_workers = 1;
      config.gpus_per_worker = 0;
    }
    const std::vector<std::string> called = node_names(configs);  // without ports, so they may differ from exam_.names
    for (const bool tunnel : {true, exam_.options.tunnel}) {
      try {
        probes_.reset();
        ClusterOptions options = exam_.options;
        options.tunnel = tunnel;
        cluster_ = std::make_unique<Cluster>(configs, options);
        cluster_->launch_servers();
        try {
          probes_ = std::make_unique<NodeProbes>(*cluster_);
          return true;
        } catch (const ClusterError&) {
          if (tunnel != exam_.options.tunnel) continue;
          throw;
        }
      } catch (const ClusterError& error) {
        const std::size_t before = exam_.nodes.size();
        for (std::size_t i = before; i-- > 0;) {
          const auto failed = std::ranges::find(error.failures(), called[i], &ClusterError::Failure::node);
          if (failed != error.failures().end()) drop(i, "start", failed->why, cure_for_start(exam_.nodes[i]));
        }
        MINIRAY_CHECK(exam_.nodes.size() < before);  // else examine() would loop forever
        return false;
      }
    }
    return false;
  }

  void examine_nodes() {
    exam_.probes = probes_.get();
    exam_.facts.clear();
    exam_.languages.clear();
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) exam_.facts.push_back(probes_->facts(i));
    ask_languages();
    check_software(exam_);
    check_network(exam_);
    check_machines(exam_);
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      Value about = exam_.facts[i];
      about["node"] = exam_.name(i);
      if (!exam_.languages.empty()) about["language"] = exam_.languages[i];
      report_.nodes.push_back(std::move(about));
    }
  }

  void ask_languages() {
    if (exam_.what.language_probe.empty()) return;
    std::vector<Worker> workers;
    try {
      workers = cluster_->connect_to_servers(exam_.what.language_probe);
    } catch (const ClusterError& error) {
      for (const ClusterError::Failure& failure : error.failures())
        exam_.problem(failure.node, "version", failure.why, cure_for_language(failure.node));
      return;
    }
    for (std::size_t i = 0; i < workers.size(); ++i) {
      try {
        exam_.languages.push_back(workers[i].recv({{}, language_timeout_s}));
      } catch (const WorkerDied& died) {
        exam_.problem(exam_.name(i), "version", "torch crashes when it is imported: " + died.certificate().cause(),
                      "Try `python -c 'import torch'` on " + exam_.name(i));
        exam_.languages.emplace_back(Map{});
      } catch (const Error& error) {
        exam_.problem(exam_.name(i), "version", "its Python did not report its versions: " + std::string(error.what()),
                      cure_for_language(exam_.name(i)));
        exam_.languages.emplace_back(Map{});
      }
    }
  }

  Examination exam_;  // has only the nodes that have not failed
  CheckReport report_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<NodeProbes> probes_;
};

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
  return shown(text, Colours::escape);  // nodes have said some of it, and a terminal would obey it
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
  if (nodes.empty()) throw UsageError("there is no node to check: nodes is empty");
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
