// A Python callable as a work function of the core.
#pragma once

#include "interop.hpp"
#include "miniray/handle.hpp"
#include "miniray/worker_server.hpp"

namespace miniray::python {

[[nodiscard]] WorkFunction as_work_function(nb::callable callable);

/// What a server that runs Python functions needs: to find them, to fork, and to be interrupted.
void set_server_options(WorkerServerOptions& options);

}  // namespace miniray::python
