#include "base/log.hpp"

#include <atomic>
#include <cstdio>
#include <string>

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

}  // namespace

void set_log(LogFunction function) {
  auto* const set = new SetFunction{std::move(function), newest_function.load()};  // the list keeps it
  while (!newest_function.compare_exchange_weak(set->before, set)) {
  }
}

void log(LogLevel level, std::string_view text) noexcept {
  if (!give(level, text)) std::fprintf(stderr, "miniray: %.*s\n", static_cast<int>(text.size()), text.data());
}

void log(LogLevel level, std::string_view text, std::string_view printed) noexcept {
  if (!give(level, text)) std::fprintf(stderr, "%.*s\n", static_cast<int>(printed.size()), printed.data());
}

}  // namespace miniray
