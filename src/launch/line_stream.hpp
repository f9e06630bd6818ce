// Lines of text and stretches of bytes over a descriptor, without waiting: what a cluster and its nodes' servers say to
// each other through ssh.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.hpp"

namespace miniray {

class LineStream {
 public:
  LineStream() = default;
  /// Reads and writes one descriptor, or two.
  explicit LineStream(Fd both);
  LineStream(Fd input, Fd output);

  /// Reads what is there. False at the end of the stream.
  bool fill();
  /// The next whole line, without its end.
  [[nodiscard]] std::optional<std::string> take_line();
  /// What is left when the stream has ended in the middle of a line, or is too long for one.
  [[nodiscard]] std::string take_rest();
  /// Goes before what will be read.
  void put_back(const std::string& text) { input_text_.insert(taken_, text); }
  [[nodiscard]] std::size_t unread_bytes() const { return input_text_.size() - taken_; }
  [[nodiscard]] bool ended() const { return ended_; }

  void write(std::string_view text) { output_text_ += text; }
  /// Writes what it can. False if the other side does not listen any more.
  bool flush();
  [[nodiscard]] std::size_t unwritten_bytes() const { return output_text_.size() - written_; }
  /// The other side sees the end of the stream.
  void finish();

  [[nodiscard]] int input_fileno() const { return input_.get(); }
  [[nodiscard]] int output_fileno() const { return output_.valid() ? output_.get() : input_.get(); }
  /// Waits for a whole line or for so many bytes; throws EndOfStream, also when nothing comes for so long.
  std::string wait_for_line(int silence_ms_max);
  std::string wait_for_bytes(std::size_t count, int silence_ms_max);
  [[nodiscard]] Fd take_descriptor() { return std::move(input_); }

 private:
  void wait_for_more(int silence_ms_max);

  Fd input_, output_;
  std::string input_text_, output_text_;
  std::size_t taken_ = 0, written_ = 0;  // how much of each is done with
  bool ended_ = false;
};

}  // namespace miniray
