// The machine's NUMA nodes and their CPUs, as hwloc tells of them.
#pragma once

#include <string>
#include <vector>

#include "miniray/hardware.hpp"

namespace miniray {

struct CpuSurvey {
  std::vector<NumaNode> numa_nodes;  ///< those that have CPUs
  std::string note;                  ///< why there are none, if there are none
};

/// hwloc's own variables describe another machine than this one: HWLOC_SYNTHETIC, HWLOC_XMLFILE.
[[nodiscard]] CpuSurvey survey_cpus();

}  // namespace miniray
