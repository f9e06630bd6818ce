// Any bytes that a stranger, or somebody with the key, sends to a worker server either ask for something or are
// refused with a complaint. Nothing else may happen: no exception, no wait, nothing read beyond the request.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/system.hpp"
#include "miniray/error.hpp"
#include "worker/newcomer.hpp"
#include "worker/request.hpp"

namespace {

using miniray::Handshake;
using miniray::Newcomer;

const miniray::Key& key() {
  static const miniray::Key made = miniray::Key::from_hex(std::string(64, 'a'), "the fuzzer");
  return made;
}

// What the server has said, as much as is wanted.
std::string hear(int socket, std::size_t wanted) {
  std::string text(wanted, '\0');
  const ssize_t size = recv(socket, text.data(), text.size(), MSG_DONTWAIT);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

// A client that has the key, up to its request.
void enter(Newcomer& newcomer, int socket) {
  Handshake client(Handshake::Role::client, key());
  while (!client.done()) {
    if (!miniray::write_at_once(socket, client.take_output())) __builtin_trap();
    if (newcomer.advance() != Newcomer::Progress::waiting) __builtin_trap();
    while (!client.done()) {
      client.feed(hear(socket, client.wanted()));
      if (client.refusal()) __builtin_trap();
    }
  }
  if (!miniray::write_at_once(socket, client.take_output())) __builtin_trap();
}

std::size_t unread_bytes(int socket) {
  std::array<char, 65536> room;
  const ssize_t size = recv(socket, room.data(), room.size(), MSG_DONTWAIT | MSG_PEEK);
  return size > 0 ? static_cast<std::size_t>(size) : 0;
}

void check_request(std::string_view text) {
  try {
    const miniray::Request request = miniray::read_request(text);
    const std::string again = miniray::write_request(request).substr(sizeof(std::uint32_t));
    if (miniray::write_request(miniray::read_request(again)).substr(sizeof(std::uint32_t)) != again) __builtin_trap();
  } catch (const miniray::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const bool with_key = (data[0] & 1U) != 0, with_length = (data[0] & 2U) != 0;
  const std::size_t piece = 1 + data[1];
  std::string bytes(reinterpret_cast<const char*>(data + 2), size - 2);
  check_request(bytes);
  constexpr std::size_t bytes_max = 32768;  // so that a socket's buffer holds them all
  if (bytes.size() > bytes_max) return 0;
  const std::string behind = "behind";
  if (with_length) bytes = miniray::with_length(bytes) + behind;

  auto [here, there] = miniray::system::socket_pair();
  Newcomer newcomer(std::move(there), "the fuzzer", key());
  if (with_key) enter(newcomer, here.get());
  Newcomer::Progress progress = Newcomer::Progress::waiting;
  for (std::size_t at = 0; at < bytes.size() && progress == Newcomer::Progress::waiting; at += piece) {
    if (!miniray::write_at_once(here.get(), std::string_view(bytes).substr(at, piece))) __builtin_trap();
    progress = newcomer.advance();
  }
  if (progress == Newcomer::Progress::waiting) {
    here.reset();
    progress = newcomer.advance();
    if (progress != Newcomer::Progress::failed) __builtin_trap();
  }
  if (progress == Newcomer::Progress::failed && newcomer.complaint().empty()) __builtin_trap();
  if (progress == Newcomer::Progress::asked) {
    if (!with_key) __builtin_trap();
    if (with_length && unread_bytes(newcomer.fileno()) > behind.size()) __builtin_trap();
  }
  return 0;
}
