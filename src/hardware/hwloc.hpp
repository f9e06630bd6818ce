// Asks hwloc for the machine's NUMA nodes and their CPUs.
#pragma once

#include <string>
#include <vector>

#include "miniray/hardware.hpp"

namespace miniray {

struct CpuSurvey {
  std::vector<NumaNode> numa_nodes;  ///< the NUMA nodes that have CPUs
  std::string note;                  ///< why nothing is known, if numa_nodes is empty
};

/// Returns the NUMA nodes of this machine, or of the one that hwloc's variables HWLOC_SYNTHETIC and HWLOC_XMLFILE
/// describe.
[[nodiscard]] CpuSurvey survey_cpus();

}  // namespace miniray
