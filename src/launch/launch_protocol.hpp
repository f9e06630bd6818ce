// The protocol in which a cluster and the servers that it started talk through ssh, and LineStream, which carries it.
// Both sides send lines of text:
//
//   server:  miniray-server {"version": ..., "protocol": ...}
//   cluster: 64 hexadecimal digits: the key of this server
//   cluster: {"port": ..., "code": {manifest}, ...}
//   server:  miniray-need ["hash", ...]                   only if files are missing; the cluster sends their bytes
//   server:  miniray-importing {}                         from here on, the cluster sends heartbeats
//   server:  miniray-ready {"port": ..., "address": ...}  or miniray-failed {"why": ...}
//   server:  >label text                                  a line that a worker printed to standard output
//   server:  !label text                                  a line that a worker printed to standard error
//   cluster: an empty line now and then: a heartbeat
//
// The cluster ignores lines before the first one that begins with "miniray-": login scripts print them. A server ends
// when the cluster's stream ends. It also ends when the cluster sends nothing for unreachable_ms, at any step.
//
// The cluster does not trust a node: each of the lines above comes once and in this order, a line has at most
// limits::launch_line_bytes_max, and the labels are those that the cluster has given. Otherwise the node fails.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.hpp"
#include "base/secret.hpp"
#include "miniray/limits.hpp"

namespace miniray {

namespace launch {

inline constexpr std::string_view hello = "miniray-server ";
inline constexpr std::string_view need = "miniray-need ";
inline constexpr std::string_view importing = "miniray-importing ";
inline constexpr std::string_view ready = "miniray-ready ";
inline constexpr std::string_view failed = "miniray-failed ";
inline constexpr char output = '>';
inline constexpr char errors = '!';

}  // namespace launch

/// Reads and writes lines of text and runs of bytes. Only the two wait_for_ calls wait.
class LineStream {
 public:
  LineStream() = default;
  /// Owns one descriptor for both directions.
  explicit LineStream(Fd both);
  /// Owns one descriptor for each direction.
  LineStream(Fd input, Fd output);

  /// Reads the bytes that have arrived. Returns false at the end of the stream.
  bool fill();
  /// Returns the next whole line of what fill() has read, without its newline; nullopt if there is none.
  [[nodiscard]] std::optional<std::string> take_line();
  /// Returns everything that fill() has read and nobody has taken, also if it is not a whole line.
  [[nodiscard]] std::string take_rest();
  /// Inserts text in front of what will be taken next.
  void put_back(const std::string& text) { input_text_.insert(taken_, text); }
  [[nodiscard]] std::size_t unread_bytes() const { return input_text_.size() - taken_; }
  [[nodiscard]] bool ended() const { return ended_; }
  /// Returns whether the next line, of which a part has arrived, is longer than a node's line may be. Ask it when
  /// take_line() has returned nothing.
  [[nodiscard]] bool line_too_long() const { return unread_bytes() > limits::launch_line_bytes_max; }
  /// Returns what fill() has read and nobody has taken. Valid until the next call.
  [[nodiscard]] std::string_view unread() const { return std::string_view(input_text_).substr(taken_); }

  /// Queues text; flush() sends it.
  void write(std::string_view text) { output_text_ += text; }
  /// Sends a line with a secret past the queue, which has to be empty, so that no copy of it stays in this process's
  /// memory. Returns false if the other side does not read.
  [[nodiscard]] bool write_secret(const Secret& secret);
  /// Sends as much of the queue as fits without waiting. Returns false if the other side has closed the stream.
  bool flush();
  [[nodiscard]] std::size_t unwritten_bytes() const { return output_text_.size() - written_; }
  /// Makes the other side see the end of the stream.
  void close_output();

  [[nodiscard]] int input_fileno() const { return input_.get(); }
  [[nodiscard]] int output_fileno() const { return output_.valid() ? output_.get() : input_.get(); }
  /// Waits for the line that write_secret() sends. It is read straight into the secret's memory, so nothing may have
  /// been read before.
  Secret wait_for_secret(std::size_t bytes, int silence_ms_max);
  /// Waits for a whole line, or for `count` bytes. Throws EndOfStream if the stream ends, or if nothing arrives for
  /// silence_ms_max.
  std::string wait_for_line(int silence_ms_max);
  std::string wait_for_bytes(std::size_t count, int silence_ms_max);
  /// Hands the descriptor over to the caller.
  [[nodiscard]] Fd take_descriptor() { return std::move(input_); }

 private:
  void wait_until_readable(int silence_ms_max);
  void wait_for_more(int silence_ms_max);

  Fd input_, output_;
  std::string input_text_, output_text_;
  std::size_t taken_ = 0, written_ = 0;  // the bytes at the front of each text that are done with
  bool ended_ = false;
};

}  // namespace miniray
