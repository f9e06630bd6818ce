// Workers that the core made, on their way into Python objects.
#pragma once

#include <memory>
#include <vector>

#include "interop.hpp"
#include "miniray/remote_worker.hpp"

namespace miniray::python {

/// Becomes a miniray.Worker when Python's constructor takes it.
struct ReadyWorker {
  std::unique_ptr<Worker> worker;
};

[[nodiscard]] nb::list wrap_ready(std::vector<Worker> workers);

}  // namespace miniray::python
