// What the binding files share: errors on their way to Python, signals on their way to waits, and the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "miniray/message.hpp"

namespace nb = nanobind;

namespace miniray::python {

/// For the core's waits: runs Python's signal handlers, and throws what they raise.
void check_signals();

/// An attribute of a module of the package, such as ("miniray._arrays", "build").
nb::object attribute(const char* module, const char* name);

void bind_errors(nb::module_& module);
void bind_array(nb::module_& module);
void bind_channel(nb::module_& module);
void bind_handle(nb::module_& module);
void bind_worker(nb::module_& module);
void bind_limits(nb::module_& module);

}  // namespace miniray::python
