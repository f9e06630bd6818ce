// The next message of each of several workers. A worker that has failed is noticed at once, though others are silent.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "miniray/worker.hpp"

namespace miniray {

struct Gathered {
  std::vector<std::optional<Message>> messages;  ///< by worker; none where it has not come
  std::optional<std::size_t> failed;             ///< the first worker that has nothing more to send
  std::exception_ptr error;                      ///< and why

  [[nodiscard]] std::vector<std::size_t> missing() const;
  [[nodiscard]] bool complete() const { return missing().empty(); }
};

/// Ends when all are there, one has failed, or the time is over. Other exceptions than MiniRay's go through, and lose
/// nothing.
[[nodiscard]] Gathered gather_messages(std::span<Worker* const> workers, const ReceiveOptions& options);
/// Undoes it: each message is its worker's next again.
void put_back(std::span<Worker* const> workers, Gathered& gathered);
/// The messages, if they are complete.
[[nodiscard]] std::vector<Message> take_messages(Gathered& gathered);

}  // namespace miniray
