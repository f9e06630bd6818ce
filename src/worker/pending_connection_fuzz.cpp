// Sends any bytes to a worker server, as a peer with or without the key, over a connection that is sealed or not. They
// are a request or are refused with an error text. Nothing else may happen: no exception, no wait, no read beyond the
// request; and what does not come in records of the peer's seal is never a request.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "worker/pending_connection.hpp"
#include "worker/request.hpp"

namespace {

using miniray::Fd;
using miniray::Handshake;
using miniray::PendingConnection;
using miniray::Seal;
using miniray::Sealing;

const miniray::Key& fuzz_key() {
  static const miniray::Key made = miniray::Key::from_hex(std::string(64, 'a'), "the fuzzer");
  return made;
}

// Returns the client's end and the server's. Only a TCP connection is sealed.
std::pair<Fd, Fd> tcp_pair() {
  static const Fd listener = miniray::network::listen(miniray::network::resolve("127.0.0.1", 0).front());
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) __builtin_trap();
  Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) __builtin_trap();
  // The listener may have the connection a moment later than the client.
  constexpr int accept_ms = 10'000;
  if (miniray::system::poll_one(listener.get(), POLLIN, accept_ms) <= 0) __builtin_trap();
  std::optional<miniray::network::Accepted> accepted = miniray::network::accept(listener.get());
  if (!accepted) __builtin_trap();
  miniray::system::set_no_delay(client.get());
  // A reset in place of the usual end, which would keep the port for a minute.
  const linger reset{.l_onoff = 1, .l_linger = 0};
  if (setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) != 0) __builtin_trap();
  return {std::move(client), std::move(accepted->socket)};
}

bool send_at_once(int socket, std::string_view bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Returns what the server has sent, at most `wanted` bytes.
std::string receive_at_once(int socket, std::size_t wanted) {
  std::string text(wanted, '\0');
  const ssize_t size = recv(socket, text.data(), text.size(), MSG_DONTWAIT);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

// What is sent over TCP, even on one machine, may take a moment to arrive.
void wait_for_bytes(int socket) {
  constexpr int patience_ms = 10'000;
  if (miniray::system::poll_one(socket, POLLIN, patience_ms) <= 0) __builtin_trap();
}

// Does what a client with the key does before it sends its request. Returns its seal, if the connection is sealed.
std::shared_ptr<Seal> prove_key(PendingConnection& connection, int socket, bool sealed) {
  Handshake client(Handshake::Role::client, fuzz_key(), sealed ? Sealing::always : Sealing::never);
  while (!client.done()) {
    if (!send_at_once(socket, client.take_output())) __builtin_trap();
    wait_for_bytes(connection.fileno());
    if (connection.advance() != PendingConnection::Progress::waiting) __builtin_trap();
    while (!client.done()) {
      wait_for_bytes(socket);
      client.feed(receive_at_once(socket, client.wanted()));
      if (client.refusal()) __builtin_trap();
    }
  }
  if (!send_at_once(socket, client.take_output())) __builtin_trap();
  return client.take_seal();
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
  // A sealed connection is much slower to make, so one input in eight has one.
  const bool sealed = (data[0] & 28U) == 28U, in_records = (data[0] & 32U) != 0;
  const std::size_t piece = 1 + data[1];
  std::string bytes(reinterpret_cast<const char*>(data + 2), size - 2);
  check_request(bytes);
  constexpr std::size_t bytes_max = 32768;  // so that a socket's buffer holds them all
  if (bytes.size() > bytes_max) return 0;
  const std::string behind = "behind";
  if (with_length) bytes = miniray::with_length(bytes) + behind;

  auto [here, there] = sealed ? tcp_pair() : miniray::system::socket_pair();
  using Progress = PendingConnection::Progress;
  PendingConnection connection(std::move(there), "the fuzzer", fuzz_key(), sealed ? std::optional(true) : std::nullopt);
  const std::shared_ptr<Seal> seal = with_key ? prove_key(connection, here.get(), sealed) : nullptr;
  if (seal != nullptr && in_records) bytes = seal->records_of(bytes);
  Progress progress = Progress::waiting;
  for (std::size_t at = 0; at < bytes.size() && progress == Progress::waiting; at += piece) {
    if (!send_at_once(here.get(), std::string_view(bytes).substr(at, piece))) __builtin_trap();
    wait_for_bytes(connection.fileno());
    progress = connection.advance();
  }
  if (progress == Progress::waiting && shutdown(here.get(), SHUT_WR) != 0) __builtin_trap();
  while (progress == Progress::waiting) {
    wait_for_bytes(connection.fileno());
    progress = connection.advance();
    if (progress == Progress::asked && !sealed) __builtin_trap();
  }
  if (progress == Progress::failed && connection.error_text().empty()) __builtin_trap();
  if (progress == Progress::asked) {
    if (!with_key || (sealed && !in_records)) __builtin_trap();
    if ((seal == nullptr) != (connection.socket().seal == nullptr)) __builtin_trap();
    if (with_length && !sealed && unread_bytes(connection.fileno()) > behind.size()) __builtin_trap();
  }
  return 0;
}
