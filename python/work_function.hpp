// A Python callable as a work function of the core.
#pragma once

#include "interop.hpp"
#include "miniray/handle.hpp"

namespace miniray::python {

[[nodiscard]] WorkFunction as_work_function(nb::callable callable);

/// For a server: finds functions by name, through miniray/_functions.py.
[[nodiscard]] std::function<WorkFunction(const std::string& name)> work_finder();

}  // namespace miniray::python
