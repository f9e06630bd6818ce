// Receives the next message of each of several workers. A worker that fails is noticed at once, even while other
// workers send nothing.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "miniray/worker.hpp"

namespace miniray {

struct Gathered {
  std::vector<std::optional<Message>> messages;  ///< by worker; nullopt where no message has come
  std::optional<std::size_t> failed;             ///< the first worker that failed
  std::exception_ptr error;                      ///< its error

  [[nodiscard]] std::vector<std::size_t> missing() const;
  [[nodiscard]] bool complete() const { return missing().empty(); }
};

/// Receives one message from each worker. Returns when all messages have come, one worker has failed, or the time is
/// over. If on_interrupt throws, gather_messages() puts all messages back and throws the exception.
[[nodiscard]] Gathered gather_messages(std::span<Worker* const> workers, const ReceiveOptions& options);
/// Undoes gather_messages(): each message is again the next one of its worker.
void put_back(std::span<Worker* const> workers, Gathered& gathered);
/// Moves the messages out. They must be complete.
[[nodiscard]] std::vector<Message> take_messages(Gathered& gathered);

}  // namespace miniray
