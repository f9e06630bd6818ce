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

/// A server of this machine that forks a pool's workers.
[[nodiscard]] RemoteAddress fork_server_address(const std::string& socket, std::shared_ptr<const Key> key,
                                                std::optional<int> spin_us, std::uint64_t message_bytes_max);

[[nodiscard]] nb::list wrap_ready(std::vector<Worker> workers);

}  // namespace miniray::python
