// The log lines of a worker server on their way to its cluster. Strangers cause most of them, and the cluster may not
// read, so lines are dropped and counted while too much waits to be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace miniray {

class LogLines {
 public:
  explicit LogLines(std::size_t unwritten_bytes_max) : unwritten_bytes_max_(unwritten_bytes_max) {}

  /// Returns what is to be written now for a text of one or more lines: the lines, each with the name of the server in
  /// front; nothing, if more than `unwritten_bytes_max` wait already. If lines were dropped before, their number is
  /// said first.
  std::string take(std::string_view text, std::size_t unwritten_bytes);
  /// Returns the line that says how many lines were dropped, once there is room for it again; otherwise nothing.
  std::string take_count(std::size_t unwritten_bytes);

 private:
  const std::size_t unwritten_bytes_max_;
  std::uint64_t dropped_ = 0;  // since the last line that said so
};

}  // namespace miniray
