// Workers on other machines, many at once; who could not be had is told apart from who could.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "base/network.hpp"
#include "miniray/remote_worker.hpp"
#include "worker/worker_state.hpp"

namespace miniray {

struct ConnectFailure {
  std::size_t address;  ///< its position
  std::exception_ptr error;
};

/// In the order of the addresses; nothing in the place of one that failed.
[[nodiscard]] std::vector<std::unique_ptr<Worker::State>> connect_workers(std::span<const RemoteAddress> addresses,
                                                                          std::vector<ConnectFailure>& failures);

/// Where its server may be.
[[nodiscard]] std::vector<network::Address> resolve(const RemoteAddress& address);

/// A worker made of what is inside one.
[[nodiscard]] Worker assemble(std::unique_ptr<Worker::State> state);

}  // namespace miniray
