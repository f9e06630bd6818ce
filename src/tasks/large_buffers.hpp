// Large buffers that several tasks are given travel to a worker once: this recognises them, by their content.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "miniray/array.hpp"

namespace miniray {

/// One that was seen more than once, and goes by a number from now on.
struct LargeBuffer {
  std::uint64_t number = 0;
  Buffer buffer;
};

class LargeBuffers {
 public:
  struct Recognised {
    Buffer buffer;                             ///< memory with these bytes that belongs to nobody else
    std::shared_ptr<const LargeBuffer> known;  ///< if they were seen before
  };
  [[nodiscard]] Recognised recognise(std::span<const std::byte> bytes);

 private:
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
