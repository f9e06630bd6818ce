// Sends any bytes to a worker server, as a peer with or without the key. They are a request or are refused with an
// error text. Nothing else may happen: no exception, no wait, no read beyond the request.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/system.hpp"
#include "miniray/error.hpp"
#include "worker/pending_connection.hpp"
#include "worker/request.hpp"

namespace {

using miniray::Handshake;
using miniray::PendingConnection;

const miniray::Key& key() {
  static const miniray::Key made = miniray::Key::from_hex(std::string(64, 'a'), "the fuzzer");
  return made;
}

bool write_at_once(int socket, std::string_view bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Returns what the server has sent, at most `wanted` bytes.
std::string receive(int socket, std::size_t wanted) {
  std::string text(wanted, '\0');
  const ssize_t size = recv(socket, text.data(), text.size(), MSG_DONTWAIT);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

// Does what a client with the key does before it sends its request.
void prove_key(PendingConnection& connection, int socket) {
  Handshake client(Handshake::Role::client, key(), miniray::Sealing::never);
  while (!client.done()) {
    if (!write_at_once(socket, client.take_output())) __builtin_trap();
    if (connection.advance() != PendingConnection::Progress::waiting) __builtin_trap();
    while (!client.done()) {
      client.feed(receive(socket, client.wanted()));
      if (client.refusal()) __builtin_trap();
    }
  }
  if (!write_at_once(socket, client.take_output())) __builtin_trap();
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
  using Progress = PendingConnection::Progress;
  PendingConnection connection(std::move(there), "the fuzzer", key(), std::nullopt);
  if (with_key) prove_key(connection, here.get());
  Progress progress = Progress::waiting;
  for (std::size_t at = 0; at < bytes.size() && progress == Progress::waiting; at += piece) {
    if (!write_at_once(here.get(), std::string_view(bytes).substr(at, piece))) __builtin_trap();
    progress = connection.advance();
  }
  if (progress == Progress::waiting) {
    here.reset();
    progress = connection.advance();
    if (progress != Progress::failed) __builtin_trap();
  }
  if (progress == Progress::failed && connection.error_text().empty()) __builtin_trap();
  if (progress == Progress::asked) {
    if (!with_key) __builtin_trap();
    if (with_length && unread_bytes(connection.fileno()) > behind.size()) __builtin_trap();
  }
  return 0;
}
