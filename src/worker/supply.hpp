// Passes buffers from a worker server to several of its workers. Each buffer crosses the network once, and every worker
// maps the same memory privately. A worker asks the server for a buffer when a message names it, and gets a descriptor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/fd.hpp"
#include "miniray/array.hpp"

namespace miniray {

/// The worker's side.
class SupplyLine {
 public:
  /// Takes ownership of the socket to the server. `on_interrupt` may throw to end a wait.
  explicit SupplyLine(Fd socket, std::function<void()> on_interrupt = {})
      : socket_(std::move(socket)), on_interrupt_(std::move(on_interrupt)) {}
  /// Waits until the server has the buffer, and returns it. Throws ProtocolError if the server cannot supply it, or if
  /// it does not have this size.
  [[nodiscard]] Buffer fetch(std::uint64_t number, std::uint64_t bytes);

 private:
  Fd socket_;
  std::function<void()> on_interrupt_;
};

/// The server's side.
class SupplyStore {
 public:
  using Worker = std::uint64_t;

  /// Adds a buffer for these workers. The store keeps it until each worker has fetched it or has ended. Throws
  /// SystemError if there is no memory for it.
  void put(std::uint64_t number, std::span<const std::byte> bytes, const std::vector<Worker>& workers);
  /// Records that a buffer cannot be supplied: fetch() throws in workers that ask for it.
  void put_missing(std::uint64_t number, const std::vector<Worker>& workers);
  /// Reads a worker's request from its socket and answers it, now or when the buffer comes. Returns false if the socket
  /// has ended or the request is malformed.
  bool on_request(Worker worker, int socket);
  /// Drops a worker that has ended, and the buffers that only it still wanted.
  void drop_worker(Worker worker);
  /// Tells the store whether a link exists over which more buffers can come. Without one, fetch() throws in workers
  /// that wait for a buffer.
  void set_expecting(bool expecting);

 private:
  struct Item {
    Fd memory;
    std::uint64_t bytes = 0;
    std::set<Worker> wanted_by;
  };
  struct Waiting {
    std::uint64_t number;
    int socket;
  };
  void keep(std::uint64_t number, Item item);
  void hand_over(std::uint64_t number, Worker worker, int socket);

  std::map<std::uint64_t, Item> items_;
  bool expecting_ = true;
  std::map<Worker, Waiting> waiting_;  // workers that have asked for a buffer which has not come yet
};

}  // namespace miniray
