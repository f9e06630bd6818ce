// Sends any bytes to one end of a sealed connection, in pieces, among records of the peer. What is read is the
// beginning of what the peer has sealed, whatever comes between.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "channel/seal.hpp"
#include "miniray/error.hpp"

namespace {

using miniray::Seal;
using miniray::SecretBlock;

SecretBlock secret_of(unsigned char byte) {
  SecretBlock secret;
  std::ranges::fill(secret.get(), byte);
  return secret;
}

// Returns what is read of these bytes. Throws ProtocolError.
std::string deliver(Seal& to, std::string_view bytes, std::size_t piece) {
  std::string text;
  std::array<std::byte, 4096> room;
  while (!bytes.empty()) {
    const std::size_t size = std::min({piece, to.room().size(), bytes.size()});
    std::memcpy(to.room().data(), bytes.data(), size);
    to.committed(size);
    bytes.remove_prefix(size);
    while (const std::size_t read = to.read(std::span(room).first(1 + piece % room.size())))
      text.append(reinterpret_cast<const char*>(room.data()), read);
    if (to.ended()) return text;
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::size_t piece = 1 + data[0] * 16U, position = data[1], bit = data[2] % 8U;
  const bool mutate = (data[3] & 1U) != 0, end = (data[3] & 2U) != 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 4), size - 4);
  Seal peer(secret_of('a'), secret_of('b'), 3), receiver(secret_of('b'), secret_of('a'), 3);
  if ((data[3] & 4U) == 0) receiver.read_ahead();
  std::string sent, stream;
  // The peer's records: one for each byte of the input that is a size, up to a few.
  for (std::size_t i = 0; i < std::min<std::size_t>(rest.size(), 6); ++i) {
    const std::string text(1 + static_cast<unsigned char>(rest[i]) * 7U, static_cast<char>('a' + i));
    sent += text;
    stream += peer.records_of(text);
  }
  if (end) {
    peer.add_end();
    const auto last = peer.unsent();
    stream.append(reinterpret_cast<const char*>(last.data()), last.size());
  }
  bool changed = false;
  if (mutate && !stream.empty()) {
    char& byte = stream[(position * 251U) % stream.size()];
    byte = static_cast<char>(byte ^ (1U << bit));
    changed = true;
  }
  std::string read;
  try {
    read = deliver(receiver, stream, piece);
    if (changed) {  // a record that seems to be longer than it is waits for the rest
      if (!sent.starts_with(read) || receiver.ended() || (read == sent && !end)) __builtin_trap();
      return 0;
    }
    if (read != sent || receiver.ended() != end) __builtin_trap();
    if (!end && !deliver(receiver, rest, piece).empty()) __builtin_trap();  // bytes of nobody
  } catch (const miniray::ProtocolError&) {
    if (!changed && read != sent) __builtin_trap();  // the peer's own records are opened
  }
  // An end that has no record of the peer at all.
  Seal fresh(secret_of('b'), secret_of('a'));
  try {
    if (!deliver(fresh, rest, piece).empty()) __builtin_trap();
  } catch (const miniray::ProtocolError&) {
  }
  return 0;
}
