// A machine that this one is described as: 8 GPUs on 2 NUMA nodes, each with one CPU, or with eight.
#pragma once

#include <cstdlib>
#include <map>
#include <string>

namespace miniray {

inline const std::map<std::string, std::string>& described_machine() {
  static const std::map<std::string, std::string> variables{{"MINIRAY_NVML_LIBRARY", FAKE_NVML},
                                                            {"HWLOC_SYNTHETIC", "numa:2 core:1 pu:1"}};
  return variables;
}

/// This process sees that machine for as long as this lives.
class Described {
 public:
  using Variables = std::map<std::string, std::string>;
  explicit Described(const Variables& also = {}) : variables_(described_machine()) {
    for (const auto& [name, value] : also) variables_[name] = value;
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Described() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

 private:
  Variables variables_;
};

}  // namespace miniray
