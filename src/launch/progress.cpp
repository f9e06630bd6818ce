#include "launch/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/system.hpp"
#include "miniray/limits.hpp"

namespace miniray {

Progress::Progress(bool wanted, const char* noun)
    : wanted_(wanted),
      noun_(noun),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_(Deadline::in_ms(terminal_ ? limits::progress_first_ms : limits::progress_line_first_ms)) {}

Progress::~Progress() {
  if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::show(const std::vector<Entry>& nodes) {
  if (!wanted_ || !next_.passed()) return;
  next_ = Deadline::in_ms(terminal_ ? limits::progress_again_ms : limits::progress_line_again_ms);
  std::size_t done = 0, named = 0;
  std::string missing;
  for (const Entry& node : nodes) {
    done += node.done ? 1 : 0;
    if (node.done || ++named > limits::progress_names_max) continue;
    missing += (missing.empty() ? "" : ", ") + node.node + " (" + node.stage + ")";
  }
  if (named > limits::progress_names_max)
    missing += " and " + std::to_string(named - limits::progress_names_max) + " more";
  const double seconds = static_cast<double>(now_ns() - begun_ns_) / 1e9;
  std::string line = "miniray: " + std::to_string(done) + " of " + std::to_string(nodes.size()) + " " + noun_ +
                     " ready after " + std::to_string(std::llround(seconds)) + " s; waiting for " + missing;
  // A line that wraps cannot be overwritten. The last column stays free, because some terminals wrap when it is filled.
  if (const std::size_t columns = terminal_ ? system::terminal_columns(STDERR_FILENO) : 0; columns > 1)
    line.resize(std::min(line.size(), columns - 1));
  std::fprintf(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "", line.c_str(), terminal_ ? "" : "\n");
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace miniray
