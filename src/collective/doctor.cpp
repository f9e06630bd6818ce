#include "miniray/doctor.hpp"

#include <algorithm>
#include <iterator>
#include <memory>

#include "base/check.hpp"
#include "cluster/node_config.hpp"
#include "collective/examination.hpp"
#include "launch/launch_command.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr double language_timeout_s = limits::language_answer_ms / 1000.0;

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
      } catch (const ProbeLost& lost) {  // all is examined anew, without that node
        const std::size_t node = lost.node;
        exam_.findings.clear();
        drop(node, "lost", "it was lost in the middle of the check: " + std::string(lost.what()),
             "See whether " + exam_.names[node] + " is up: ssh " + exam_.nodes[node].host + " uptime");
      }
    }
    probes_.reset();
    if (cluster_) cluster_->stop();
    report_.findings.insert(report_.findings.end(), exam_.findings.begin(), exam_.findings.end());
    std::vector<Finding> sorted;
    for (const Finding::Severity severity : {Finding::Severity::problem, Finding::Severity::warning})
      std::ranges::copy_if(report_.findings, std::back_inserter(sorted),
                           [&](const Finding& each) { return each.severity == severity; });
    report_.findings = std::move(sorted);
    return std::move(report_);
  }

 private:
  // A node that is not examined any further.
  void drop(std::size_t node, const char* check, std::string what, std::string cure) {
    report_.findings.push_back(
        {Finding::Severity::problem, exam_.names[node], check, std::move(what), std::move(cure)});
    report_.failed_nodes.push_back(exam_.names[node]);
    exam_.nodes.erase(exam_.nodes.begin() + static_cast<std::ptrdiff_t>(node));
    exam_.names.erase(exam_.names.begin() + static_cast<std::ptrdiff_t>(node));
  }

  // The failure says what ssh or the interpreter said; this is what to try by hand.
  static std::string cure_for_start(const NodeConfig& node) {
    const std::string python = node.python_bin.empty() ? "python3" : quote_for_shell(node.python_bin);
    const std::string command = python + " -c 'import miniray'";
    return "Try, until it works: " + (is_local(node.host) ? command : "ssh " + node.host + " \"" + command + "\"");
  }

  static std::string cure_for_language(const std::string& node) {
    return "Try, until it works, on " + node + ": python3 -c 'import miniray.doctor, torch'";
  }

  // Servers and probes on all nodes; if some fail, these are dropped, and it is false. The talk with them goes through
  // ssh where that works, so that a firewall is a finding, and no obstacle.
  bool bring_up() {
    std::vector<NodeConfig> configs = exam_.nodes;
    for (NodeConfig& config : configs) {
      config.base_port = 0;
      config.num_workers = 1;
      config.gpus_per_worker = 0;
    }
    const std::vector<std::string> called = node_names(configs);
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
        MINIRAY_CHECK(exam_.nodes.size() < before);  // else it would be tried for ever
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
                      "See `python -c 'import torch'` on " + exam_.name(i));
        exam_.languages.emplace_back(Map{});
      } catch (const Error& error) {
        exam_.problem(exam_.name(i), "version", "its Python does not say its versions: " + std::string(error.what()),
                      cure_for_language(exam_.name(i)));
        exam_.languages.emplace_back(Map{});
      }
    }
  }

  Examination exam_;  // of the nodes that have not failed
  CheckReport report_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<NodeProbes> probes_;
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
