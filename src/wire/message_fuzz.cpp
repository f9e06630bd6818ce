// Decodes any body with any buffers. It is refused, or its value encodes and decodes again to the same value.
#include <cstddef>
#include <cstdint>

#include "miniray/error.hpp"
#include "miniray/message.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace miniray;
  if (size < 2) return 0;
  Message message;
  message.codec = static_cast<Codec>(data[0] & 1U);
  // Two bits choose each of three buffers: absent, empty, 8 bytes or 24 bytes.
  for (unsigned i = 0; i < 3; ++i) {
    constexpr std::size_t sizes[] = {0, 0, 8, 24};
    const unsigned which = (data[1] >> (2 * i)) & 3U;
    if (which == 0) continue;
    Buffer& buffer = message.buffers.emplace_back(Buffer::allocate(sizes[which]));
    for (std::byte& byte : buffer.bytes()) byte = static_cast<std::byte>(i);
  }
  message.body.assign(reinterpret_cast<const char*>(data + 2), size - 2);
  (void)text_of(message.codec, message.body);
  try {
    const Value value = decode(message);
    (void)value.text();
    for (const Codec codec : {Codec::msgpack, Codec::json}) {
      const Message again = encode(value, codec);
      if (!(decode(again) == value)) __builtin_trap();
    }
  } catch (const ProtocolError&) {
  } catch (const Unsendable&) {  // a reader counts nesting differently, and accepts slightly more than a writer
  }
  return 0;
}
