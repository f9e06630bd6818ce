// A connection to a worker server before its request is complete. The peer proves that it has the key, then sends its
// request. Nothing here waits, and nothing after the request is read. Input is untrusted.
#pragma once

#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "channel/authentication.hpp"
#include "worker/request.hpp"

namespace miniray {

class PendingConnection {
 public:
  /// Takes ownership of a socket that does not block. `peer` is the peer's address, for errors, and `encrypt` that of
  /// sealing_for().
  PendingConnection(Fd socket, std::string peer, const Key& key, std::optional<bool> encrypt);

  enum class Progress : std::uint8_t { waiting, asked, failed };
  /// Reads what has arrived and answers it. It never waits and never throws: after a failure, error_text() has the
  /// reason.
  Progress advance();
  /// Returns the request, once advance() has returned Progress::asked.
  [[nodiscard]] const Request& request() const { return *request_; }
  [[nodiscard]] const std::string& error_text() const { return error_text_; }
  [[nodiscard]] const std::string& peer() const { return peer_; }
  /// Returns whether the peer has proved that it has the key.
  [[nodiscard]] bool proved() const { return handshake_.done(); }
  [[nodiscard]] int fileno() const { return socket_.fileno(); }
  [[nodiscard]] const SealedSocket& socket() const { return socket_; }
  /// Starts the peer's time again. The server calls it if it was itself too busy to read what the peer sent.
  void restart_deadline() { deadline_ = Deadline::in_ms(limits::hello_timeout_ms); }
  [[nodiscard]] bool late() const { return deadline_.passed(); }
  /// Returns what the peer has not sent in time, as words.
  [[nodiscard]] std::string late_text() const;
  /// Overwrites the keys of the connection, in a forked process that has a copy of them.
  void wipe() {
    handshake_.wipe();
    if (socket_.seal) socket_.seal->wipe();
  }
  [[nodiscard]] SealedSocket take_socket() { return std::move(socket_); }

 private:
  Progress fail(std::string error_text);
  Progress read_length();

  SealedSocket socket_;
  std::string peer_;
  Deadline deadline_ = Deadline::in_ms(limits::hello_timeout_ms);
  Handshake handshake_;
  std::string input_;
  std::size_t wanted_ = sizeof(std::uint32_t);
  bool length_known_ = false;
  std::optional<Request> request_;
  std::string error_text_;
};

}  // namespace miniray
