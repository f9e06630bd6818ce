// A Python callable as a work function of the core.
#pragma once

#include "interop.hpp"
#include "miniray/handle.hpp"

namespace miniray::python {

[[nodiscard]] WorkFunction as_work_function(nb::callable work);

}  // namespace miniray::python
