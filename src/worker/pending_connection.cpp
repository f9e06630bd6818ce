#include "worker/pending_connection.hpp"

#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "wire/utf8.hpp"

namespace miniray {

PendingConnection::PendingConnection(Fd socket, std::string peer, const Key& key, std::optional<bool> encrypt)
    : socket_{std::move(socket), nullptr},
      peer_(std::move(peer)),
      handshake_(Handshake::Role::server, key, sealing_for(socket_.fileno(), encrypt)) {}

PendingConnection::Progress PendingConnection::fail(std::string error_text) {
  error_text_ = std::move(error_text);
  return Progress::failed;
}

std::string PendingConnection::late_text() const {
  const std::string within = " within " + std::to_string(limits::hello_timeout_ms / 1000) + " s";
  if (!handshake_.begun()) return "it sent nothing" + within;
  return handshake_.done() ? "it sent no request" + within : "it did not prove that it has the key" + within;
}

PendingConnection::Progress PendingConnection::advance() {
  std::array<std::byte, 4096> room;
  while (true) {
    MINIRAY_CHECK(input_.size() < wanted_ && !request_, input_.size(), wanted_);
    // Never more than belongs to the request: what follows it is the worker's, which reads the same socket. A seal
    // reads whole records; what it has beyond the request goes to the worker with it.
    const std::size_t wanted = handshake_.done() ? wanted_ - input_.size() : handshake_.wanted();
    system::Transfer transfer{};
    try {
      transfer = receive(socket_.fileno(), socket_.seal.get(), std::span(room).first(std::min(wanted, room.size())),
                         system::Block::no, nullptr);
    } catch (const Error& error) {
      return fail(error.what());
    }
    if (transfer.outcome == system::Transfer::Outcome::interrupted) continue;
    if (transfer.outcome == system::Transfer::Outcome::would_block) return Progress::waiting;
    if (transfer.outcome == system::Transfer::Outcome::closed)
      return fail(!handshake_.begun() ? "it closed the connection and sent nothing"
                  : handshake_.done()
                      ? "it closed the connection before it sent its request"
                      : "it closed the connection before it proved that it has the key; probably it has "
                        "another one");
    const std::string_view arrived(reinterpret_cast<const char*>(room.data()), transfer.bytes);
    if (!handshake_.done()) {
      handshake_.feed(arrived);
      const std::string answer = handshake_.take_output();
      if (!answer.empty() && !socket_.write_at_once(answer)) return fail("it does not read the answer");
      if (handshake_.refusal()) return fail(handshake_.error_text());
      if (handshake_.done()) socket_.seal = handshake_.take_seal();
      continue;  // with what wanted() says next
    }
    input_ += arrived;
    if (input_.size() < wanted_) continue;
    if (!length_known_) {  // the first four bytes are the length
      if (read_length() == Progress::failed) return Progress::failed;
      continue;
    }
    try {
      request_ = read_request(input_);
      return Progress::asked;
    } catch (const std::exception& error) {
      return fail("its request cannot be read: " + to_utf8_line(error.what()));
    }
  }
}

PendingConnection::Progress PendingConnection::read_length() {
  std::uint32_t length = 0;
  std::memcpy(&length, input_.data(), sizeof(length));
  if (length == 0 || length > limits::request_bytes_max)
    return fail("its request has " + std::to_string(length) + " bytes, and the limit is " +
                std::to_string(limits::request_bytes_max));
  length_known_ = true;
  wanted_ = length;
  input_.clear();
  return Progress::waiting;
}

}  // namespace miniray
