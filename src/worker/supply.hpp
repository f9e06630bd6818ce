// Buffers that a server holds for several of its workers: each comes to the machine once, and every worker maps the
// same memory, privately. A worker asks for a buffer when a message names it; the answer is a descriptor.
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
  /// `on_interrupt` may throw, to end a wait.
  explicit SupplyLine(Fd socket, std::function<void()> on_interrupt = {})
      : socket_(std::move(socket)), on_interrupt_(std::move(on_interrupt)) {}
  /// Waits until the server has the buffer. ProtocolError if it has not, or if it is not as large as the message says.
  [[nodiscard]] Buffer fetch(std::uint64_t number, std::uint64_t bytes);

 private:
  Fd socket_;
  std::function<void()> on_interrupt_;
};

/// The server's side.
class SupplyStore {
 public:
  using Worker = std::uint64_t;

  /// A buffer for these workers. It is kept until each has fetched it or is gone.
  void put(std::uint64_t number, std::span<const std::byte> bytes, const std::vector<Worker>& workers);
  /// The buffer cannot be held: whoever asks is told so.
  void put_nothing(std::uint64_t number, const std::vector<Worker>& workers);
  /// A worker's socket can be read: it asks for something. False if it cannot be made sense of.
  bool asked(Worker worker, int socket);
  void gone(Worker worker);
  /// Whether there is a link over which more can come. If not, whoever waits for something is told so.
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
  std::map<Worker, Waiting> waiting_;  // asked for what has not come yet
};

}  // namespace miniray
