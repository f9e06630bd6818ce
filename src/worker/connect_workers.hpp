// Workers on other machines, many at once; who could not be had is told apart from who could.
#pragma once

#include <exception>
#include <memory>
#include <optional>
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

/// One worker that is on its way. It never waits, except for the name server that knows its host.
class WorkerConnection {
 public:
  explicit WorkerConnection(RemoteAddress address);
  WorkerConnection(const WorkerConnection&) = delete;
  WorkerConnection& operator=(const WorkerConnection&) = delete;
  ~WorkerConnection();
  /// Goes on as far as it can, and returns the worker once it is there. Throws what keeps it from coming.
  [[nodiscard]] std::optional<Worker> advance();

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

/// Where its server may be.
[[nodiscard]] std::vector<network::Address> resolve(const RemoteAddress& address);

/// A worker made of what is inside one.
[[nodiscard]] Worker assemble(std::unique_ptr<Worker::State> state);

}  // namespace miniray
