// Feeds any bytes, in pieces of any size, to a FrameReader. They become frames or are refused; nothing else may happen.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "miniray/error.hpp"
#include "wire/frame.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t piece = 1 + data[0];
  const std::uint64_t hold_above = data[1];
  data += 2;
  size -= 2;
  miniray::FrameReader reader(1 << 20);
  try {
    while (size > 0) {
      reader.set_hold_above(hold_above);
      if (reader.holds_back()) reader.set_hold_above(UINT64_MAX);
      const std::span<std::byte> room = reader.room();
      const std::size_t bytes = std::min<std::size_t>({room.size(), piece, size});
      std::memcpy(room.data(), data, bytes);
      reader.commit(bytes);
      data += bytes;
      size -= bytes;
      while (reader.has_frame()) {
        const miniray::Frame frame = reader.take_frame();
        if (frame.body.size() != frame.head.body_bytes) __builtin_trap();
      }
    }
  } catch (const miniray::ProtocolError&) {
  } catch (const miniray::MessageTooLarge&) {
  }
  return 0;
}
