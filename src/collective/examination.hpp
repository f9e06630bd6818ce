// A check under way: the nodes that answer, what they have told, and what was found. Each part of it looks at one kind
// of trouble.
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
  std::vector<Value> facts;      ///< what each node's probe told
  std::vector<Value> languages;  ///< and its Python; empty if nobody was asked
  std::vector<Finding> findings = {};

  [[nodiscard]] const std::string& name(std::size_t node) const { return names[node]; }
  void problem(const std::string& node, const char* check, std::string what_is_wrong, std::string cure) {
    findings.push_back({Finding::Severity::problem, node, check, std::move(what_is_wrong), std::move(cure)});
  }
  void warning(const std::string& node, const char* check, std::string what_is_wrong, std::string cure) {
    findings.push_back({Finding::Severity::warning, node, check, std::move(what_is_wrong), std::move(cure)});
  }
};

/// Versions of Python, torch, NCCL and CUDA.
void check_software(Examination& examination);
/// Ports, the ways between nodes, and what names mean.
void check_network(Examination& examination);
/// Clocks, GPUs, shared memory and limits.
void check_machines(Examination& examination);

}  // namespace miniray
