// Reads a ring with any content. It becomes frames or is refused; nothing else may happen.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "channel/ring.hpp"
#include "miniray/error.hpp"
#include "wire/frame.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace miniray;
  if (size < sizeof(std::uint64_t)) return 0;
  Fd memory = system::sealed_memory("miniray", ring_head_bytes + limits::ring_bytes);
  const system::Mapping peer(memory.get(), ring_head_bytes + limits::ring_bytes);
  RingReader reader(std::move(memory));
  std::uint64_t written = 0;
  std::memcpy(&written, data, sizeof(written));
  data += sizeof(written);
  size -= sizeof(written);
  std::memcpy(peer.bytes().data() + ring_head_bytes, data, std::min(size, limits::ring_bytes));
  reinterpret_cast<RingHead*>(peer.bytes().data())->written = written;
  try {
    while (const std::optional<std::string_view> bytes = reader.take(UINT64_MAX)) {
      std::optional<Message> plain;
      const bool is_plain = parse_plain_message(*bytes, limits::message_bytes_max, plain);
      const Frame frame = parse_frame(*bytes);
      if (frame.stream_bytes() != bytes->size()) __builtin_trap();
      if (is_plain && (plain->body != frame.body || plain->kind != frame.head.kind || !frame.entries.empty()))
        __builtin_trap();
    }
  } catch (const ProtocolError&) {
  } catch (const MessageTooLarge&) {
  }
  return 0;
}
