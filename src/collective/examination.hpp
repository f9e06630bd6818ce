// An Examination holds the state of one check(): the nodes that answer, their facts, and the findings so far. The
// check_ functions each look for one kind of problem and add findings.
#pragma once

#include <string>
#include <vector>

#include "collective/node_probes.hpp"
#include "miniray/doctor.hpp"

namespace miniray {

struct Examination {
  std::vector<NodeConfig> nodes;
  std::vector<std::string> names;
  const ClusterOptions& options;
  const CheckOptions& what;
  NodeProbes* probes = nullptr;
  std::vector<Value> facts;      ///< by node: the answer of its probe to "facts"
  std::vector<Value> languages;  ///< by node: its versions of Python and torch; empty if they were not asked for
  std::vector<Finding> findings = {};

  [[nodiscard]] const std::string& name(std::size_t node) const { return names[node]; }
  void problem(const std::string& node, const char* check, std::string what_is_wrong, std::string cure) {
    findings.push_back({Finding::Severity::problem, node, check, std::move(what_is_wrong), std::move(cure)});
  }
  void warning(const std::string& node, const char* check, std::string what_is_wrong, std::string cure) {
    findings.push_back({Finding::Severity::warning, node, check, std::move(what_is_wrong), std::move(cure)});
  }
};

/// Checks that the versions of Python, torch, NCCL and CUDA are the same on all nodes.
void check_software(Examination& examination);
/// Checks ports, the connections between all pairs of nodes, and what names mean.
void check_network(Examination& examination);
/// Checks clocks, GPUs, shared memory and limits.
void check_machines(Examination& examination);

}  // namespace miniray
