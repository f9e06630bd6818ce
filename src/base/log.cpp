#include "base/log.hpp"

#include <unistd.h>

#include <atomic>
#include <string>

#include "base/system.hpp"

namespace miniray {
namespace {

// A list of all functions that the program has set, the newest first. None is ever dropped, so that reading the newest
// needs no lock, which a fork could leave locked in the child.
struct SetFunction {
  LogFunction function;
  const SetFunction* before;
};

std::atomic<const SetFunction*> newest_function = nullptr;

bool give(LogLevel level, std::string_view text) noexcept {
  const SetFunction* const set = newest_function.load(std::memory_order_acquire);
  if (set == nullptr || !set->function) return false;
  try {
    set->function(level, text);
    return true;
  } catch (...) {
    return false;  // the text is printed
  }
}

std::atomic<std::uint64_t> dropped_lines = 0;
std::atomic<bool> line_is_cut = false;  // only a part of the last line was written, without its line break

// One write takes the whole text, so that lines of several threads and processes do not mix.
void print(std::string_view before, std::string_view text) noexcept {
  const std::uint64_t dropped = dropped_lines.exchange(0);
  const bool cut = line_is_cut.exchange(false);
  try {
    std::string line = cut ? "\n" : "";
    if (dropped > 0)
      line += "miniray: " + std::to_string(dropped) +
              (dropped == 1 ? " line of the log was dropped, because nobody read it\n"
                            : " lines of the log were dropped, because nobody read them\n");
    const std::size_t notice_bytes = line.size();
    line.append(before).append(text) += '\n';
    const std::size_t written = system::write_without_waiting(STDERR_FILENO, line);
    if (written == line.size()) return;
    dropped_lines += written < notice_bytes ? dropped + 1 : 1;
    line_is_cut = written > 0 ? line[written - 1] != '\n' : cut;
  } catch (...) {  // there is no memory for the line
    dropped_lines += dropped + 1;
    line_is_cut = cut;
  }
}

}  // namespace

void set_log(LogFunction function) {
  auto* const set = new SetFunction{std::move(function), newest_function.load()};  // the list keeps it
  while (!newest_function.compare_exchange_weak(set->before, set)) {
  }
}

void log(LogLevel level, std::string_view text) noexcept {
  if (!give(level, text)) print("miniray: ", text);
}

void log(LogLevel level, std::string_view text, std::string_view printed) noexcept {
  if (!give(level, text)) print("", printed);
}

}  // namespace miniray
