// Large buffers that several tasks are given travel to a worker once: this recognises them, by their content.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "miniray/array.hpp"
#include "miniray/message.hpp"

namespace miniray {

/// One that was seen more than once, and goes by a number from now on.
struct LargeBuffer {
  std::uint64_t number = 0;
  Buffer buffer;
};

/// Is used by one thread at a time.
class LargeBuffers {
 public:
  /// A call that waits may go out after its arguments have changed, or are gone: from now on it has its own. Returns
  /// those that other calls have had as well: where a worker keeps them, they do not travel again.
  [[nodiscard]] std::vector<std::shared_ptr<const LargeBuffer>> own_buffers(Message& call);

 private:
  struct Recognised {
    Buffer buffer;                             ///< memory with these bytes that belongs to nobody else
    std::shared_ptr<const LargeBuffer> known;  ///< if they were seen before
  };
  [[nodiscard]] Recognised recognise(std::span<const std::byte> bytes);
  struct Seen {
    std::uint64_t sample;
    Buffer buffer;
    std::shared_ptr<const LargeBuffer> known;
  };
  std::deque<Seen> seen_;  // the last few
  std::uint64_t seen_bytes_ = 0;
  std::uint64_t last_number_ = 0;
};

}  // namespace miniray
