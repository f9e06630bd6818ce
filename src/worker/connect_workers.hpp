// Connects to many workers on other machines at once, and reports failures per address.
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
  std::size_t address;  ///< the position of the address
  std::exception_ptr error;
};

/// Connects to all addresses. Returns the workers in the order of the addresses, with a null pointer for each address
/// that failed. Appends the errors of those addresses to `failures`.
[[nodiscard]] std::vector<std::unique_ptr<Worker::State>> connect_workers(std::span<const RemoteAddress> addresses,
                                                                          std::vector<ConnectFailure>& failures);

/// A connection to one worker, while it is being made. advance() does not wait; the constructor may wait for a name
/// server.
class WorkerConnection {
 public:
  explicit WorkerConnection(RemoteAddress address);
  WorkerConnection(const WorkerConnection&) = delete;
  WorkerConnection& operator=(const WorkerConnection&) = delete;
  /// Waits for at most limits::new_link_ms if the connection is under way.
  ~WorkerConnection();
  /// Does the next steps that are possible without waiting. Returns the worker once it is connected, else nothing.
  /// Throws what create_remote_workers() throws.
  [[nodiscard]] std::optional<Worker> advance();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the addresses of host and other_host, to be tried in this order. Throws UnknownHost.
[[nodiscard]] std::vector<network::Address> resolve(const RemoteAddress& address);

/// Makes a Worker from its state.
[[nodiscard]] Worker assemble(std::unique_ptr<Worker::State> state);

}  // namespace miniray
