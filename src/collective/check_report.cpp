// What a check has found, for people and for programs.
#include <algorithm>

#include "cluster/probe.hpp"
#include "miniray/doctor.hpp"

namespace miniray {
namespace {

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

}  // namespace miniray
