// Makes a work function of the core from a Python callable.
#pragma once

#include "interop.hpp"
#include "miniray/handle.hpp"
#include "miniray/worker_server.hpp"

namespace miniray::python {

/// Returns a work function that calls the callable with a miniray.Handle. It may be destroyed without the GIL.
[[nodiscard]] WorkFunction as_work_function(nb::callable callable);

/// Sets the options that a server of Python functions needs: how to find them, to fork, and to handle Ctrl-C.
void set_server_options(WorkerServerOptions& options, bool pickle = true);

}  // namespace miniray::python
