// Asks the library of NVIDIA's driver (NVML) for the machine's GPUs.
#pragma once

#include <string>
#include <vector>

#include "miniray/hardware.hpp"

namespace miniray {

struct GpuSurvey {
  std::vector<Gpu> gpus;  ///< all GPUs of the machine, in the order of their PCI addresses
  std::string driver_version;
  std::string note;  ///< why no GPU was found, if gpus is empty
};

/// Returns all GPUs of the machine. The variable MINIRAY_NVML_LIBRARY names the library if it is not in a usual place.
[[nodiscard]] GpuSurvey survey_gpus();

}  // namespace miniray
