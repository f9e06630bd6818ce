// The machine's NVIDIA GPUs, as the driver's own library (NVML) tells of them.
#pragma once

#include <string>
#include <vector>

#include "miniray/hardware.hpp"

namespace miniray {

struct GpuSurvey {
  std::vector<Gpu> gpus;  ///< all of the machine, in the order of their PCI addresses
  std::string driver_version;
  std::string note;  ///< why there are none, if there are none
};

/// MINIRAY_NVML_LIBRARY names the library where it has no usual place.
[[nodiscard]] GpuSurvey survey_gpus();

}  // namespace miniray
