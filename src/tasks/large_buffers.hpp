// Recognises large buffers that several tasks have, by their content, so that they travel to a worker once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "miniray/array.hpp"
#include "miniray/message.hpp"

namespace miniray {

/// A buffer that was seen more than once, and has a number from then on.
struct LargeBuffer {
  std::uint64_t number = 0;
  Buffer buffer;
};

/// One thread at a time uses it.
class LargeBuffers {
 public:
  /// Copies the buffers of a call, which may go out after its arguments have changed or are gone. Returns the large
  /// ones that other calls have had as well: they do not travel again to a worker that keeps them.
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
