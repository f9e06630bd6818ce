// A connection to a worker server that has not been let in yet. It proves itself, then says what it wants; nothing that
// it sends is waited for, and nothing of what follows its request is read.
#pragma once

#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "channel/authentication.hpp"
#include "worker/request.hpp"

namespace miniray {

class Newcomer {
 public:
  Newcomer(Fd socket, std::string peer, const Key& key);

  enum class Progress : std::uint8_t { waiting, asked, failed };
  /// Reads what has come. Never waits and never throws: a peer's fault is a complaint.
  Progress advance();
  [[nodiscard]] const Request& request() const { return *request_; }
  [[nodiscard]] const std::string& complaint() const { return complaint_; }
  [[nodiscard]] const std::string& peer() const { return peer_; }
  [[nodiscard]] int fileno() const { return socket_.get(); }
  [[nodiscard]] const Fd& socket() const { return socket_; }
  /// Nobody could listen to it so far.
  void begin_anew() { deadline_ = Deadline::in_ms(limits::hello_timeout_ms); }
  [[nodiscard]] bool late() const { return deadline_.passed(); }
  /// What it should be told of, if it never came to the point.
  [[nodiscard]] std::string lateness() const;
  [[nodiscard]] Fd take_socket() { return std::move(socket_); }

 private:
  Progress fail(std::string complaint);
  Progress read_length();

  Fd socket_;
  std::string peer_;
  Deadline deadline_ = Deadline::in_ms(limits::hello_timeout_ms);
  Handshake handshake_;
  std::string input_;
  std::size_t wanted_ = sizeof(std::uint32_t);
  bool length_known_ = false;
  std::optional<Request> request_;
  std::string complaint_;
};

/// Writes a small text to a socket that nobody else has written to; false if it does not take it.
bool write_at_once(int socket, std::string_view bytes);

}  // namespace miniray
