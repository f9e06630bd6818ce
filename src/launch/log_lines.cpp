#include "launch/log_lines.hpp"

#include <algorithm>
#include <utility>

namespace miniray {
namespace {

std::string log_line(std::string_view line) { return "miniray worker-server: " + std::string(line) + "\n"; }

}  // namespace

std::string LogLines::take_count(std::size_t unwritten_bytes) {
  if (dropped_ == 0 || unwritten_bytes > unwritten_bytes_max_) return {};
  const std::uint64_t dropped = std::exchange(dropped_, 0);
  return log_line(dropped == 1 ? "1 line of this log was dropped, because the cluster had not read those before it"
                               : std::to_string(dropped) +
                                     " lines of this log were dropped, because the cluster had not read those before "
                                     "them");
}

std::string LogLines::take(std::string_view text, std::size_t unwritten_bytes) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (unwritten_bytes > unwritten_bytes_max_) {
    dropped_ += 1 + static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
    return {};
  }
  std::string lines = take_count(unwritten_bytes);
  while (true) {
    const std::size_t end = text.find('\n');
    lines += log_line(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

}  // namespace miniray
