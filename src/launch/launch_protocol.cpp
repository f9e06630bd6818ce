#include "launch/launch_protocol.hpp"

#include <poll.h>

#include <array>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {

LineStream::LineStream(Fd both) : input_(std::move(both)) { network::set_blocking(input_.get(), false); }

LineStream::LineStream(Fd input, Fd output) : input_(std::move(input)), output_(std::move(output)) {
  network::set_blocking(input_.get(), false);
  network::set_blocking(output_.get(), false);
}

bool LineStream::fill() {
  MINIRAY_CHECK(taken_ <= input_text_.size(), taken_, input_text_.size());
  std::array<std::byte, limits::staging_bytes> room;
  while (!ended_) {
    const system::Transfer transfer = system::read_some(input_.get(), room);
    if (transfer.outcome == system::Transfer::Outcome::would_block) return true;
    if (transfer.outcome == system::Transfer::Outcome::closed) ended_ = true;
    input_text_.append(reinterpret_cast<const char*>(room.data()), transfer.bytes);
    // A sender that never pauses must not keep the caller here.
    if (transfer.bytes < room.size() || unread_bytes() > limits::output_queue_bytes_max) break;
  }
  return !ended_;
}

std::optional<std::string> LineStream::take_line() {
  const std::size_t end = input_text_.find('\n', taken_);
  if (end == std::string::npos) {
    input_text_.erase(0, taken_);  // once for many lines, because each erase moves the rest of the text
    taken_ = 0;
    return std::nullopt;
  }
  std::string line = input_text_.substr(taken_, end - taken_);
  taken_ = end + 1;
  return line;
}

std::string LineStream::take_rest() {
  std::string rest = input_text_.substr(taken_);
  input_text_.clear();
  taken_ = 0;
  return rest;
}

bool LineStream::write_secret(const Secret& secret) {
  MINIRAY_CHECK(unwritten_bytes() == 0, unwritten_bytes());
  return system::write_some(output_fileno(), secret.text()).bytes == secret.text().size() &&
         system::write_some(output_fileno(), "\n").bytes == 1;
}

Secret LineStream::wait_for_secret(std::size_t bytes, int silence_ms_max) {
  MINIRAY_CHECK(unread_bytes() == 0 && !ended_, unread_bytes());
  Secret secret(bytes);
  std::byte newline{};
  const auto into = [&](std::span<std::byte> room) {
    while (!room.empty()) {
      wait_until_readable(silence_ms_max);
      const system::Transfer transfer = system::read_some(input_.get(), room);
      if (transfer.outcome == system::Transfer::Outcome::closed)
        throw EndOfStream("the coordinator has closed the connection");
      room = room.subspan(transfer.bytes);
    }
  };
  into(std::as_writable_bytes(secret.get()));
  into(std::span(&newline, 1));
  return secret;
}

bool LineStream::flush() {
  MINIRAY_CHECK(written_ <= output_text_.size(), written_, output_text_.size());
  while (unwritten_bytes() > 0) {
    const system::Transfer transfer =
        system::write_some(output_fileno(), std::string_view(output_text_).substr(written_));
    if (transfer.outcome == system::Transfer::Outcome::closed) return false;
    written_ += transfer.bytes;
    // Seldom, because each erase moves the rest of the text.
    if (written_ > limits::output_queue_bytes_max) output_text_.erase(0, std::exchange(written_, 0));
    if (transfer.outcome == system::Transfer::Outcome::would_block) return true;
  }
  output_text_.clear();
  written_ = 0;
  return true;
}

void LineStream::close_output() {
  // A descriptor for both directions stays open, because the other side may still send.
  if (output_.valid())
    output_.reset();
  else if (input_.valid())
    system::shut_down_writing(input_.get());
}

void LineStream::wait_until_readable(int silence_ms_max) {
  const Deadline deadline = Deadline::in_ms(silence_ms_max);
  while (system::poll_one(input_.get(), POLLIN, deadline.poll_ms(limits::wait_slice_ms)) <= 0)
    if (deadline.passed())
      throw EndOfStream("the coordinator cannot be reached: it has sent nothing for " +
                        std::to_string(silence_ms_max / 1000) + " s");
}

void LineStream::wait_for_more(int silence_ms_max) {
  if (ended_) throw EndOfStream("the coordinator has closed the connection");
  wait_until_readable(silence_ms_max);
  fill();
}

std::string LineStream::wait_for_line(int silence_ms_max) {
  while (true) {
    if (std::optional<std::string> line = take_line()) return *line;
    if (unread_bytes() > limits::launch_settings_bytes_max)
      throw ProtocolError("the coordinator sent a line of more than " +
                          std::to_string(limits::launch_settings_bytes_max / limits::mib) + " MiB");
    wait_for_more(silence_ms_max);
  }
}

std::string LineStream::wait_for_bytes(std::size_t count, int silence_ms_max) {
  while (unread_bytes() < count) wait_for_more(silence_ms_max);
  std::string bytes = input_text_.substr(taken_, count);
  input_text_.erase(0, taken_ + count);
  taken_ = 0;
  return bytes;
}

}  // namespace miniray
