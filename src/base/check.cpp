#include "base/check.hpp"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/crash.hpp"
#include "miniray/limits.hpp"
#include "miniray/version.hpp"

namespace miniray {
namespace {

// A text of limited length. Whatever does not fit is left out.
class Report {
 public:
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(text_.data() + size_, text_.size() - size_, format, arguments);
    va_end(arguments);
    size_ = std::min(size_ + static_cast<std::size_t>(std::max(length, 0)), text_.size() - 1);
  }
  void add(const CheckValue& value) {
    switch (value.kind) {
      case CheckValue::Kind::boolean:
        return add("%s", value.integer != 0 ? "true" : "false");
      case CheckValue::Kind::signed_integer:
        return add("%lld", static_cast<long long>(value.integer));
      case CheckValue::Kind::unsigned_integer:
        return add("%llu", static_cast<unsigned long long>(value.integer));
      case CheckValue::Kind::real:
        return add("%.17g", value.real);
      case CheckValue::Kind::text:
        return add("%.*s", limits::check_value_chars_max, value.text);
    }
  }
  void write_to(int descriptor) const {
    [[maybe_unused]] const ssize_t written = write(descriptor, text_.data(), size_);
  }

 private:
  std::array<char, limits::check_report_bytes_max> text_{};
  std::size_t size_ = 0;
};

}  // namespace

void check_failed(const char* check, std::initializer_list<CheckValue> values) {
  const char* const condition = check + std::strlen(check) + 1;
  const char* const names = condition + std::strlen(condition) + 1;
  Report report;
  report.add("miniray: a bug in MiniRay %s, at %s: this must hold: %.1000s.", version, check, condition);
  if (values.size() > 0) {
    report.add(" The values: (%.500s) = (", names);
    for (const CheckValue& value : values) {
      if (&value != values.begin()) report.add(", ");
      report.add(value);
    }
    report.add(").");
  }
  report.add(" Please report it, with these lines.\n");
  report.write_to(STDERR_FILENO);
  if (crash_descriptor() >= 0) {  // a coordinator reads this file; the handler of SIGABRT adds the stack
    report.write_to(crash_descriptor());
  } else {
    std::array<void*, limits::crash_frames_max> frames{};
    Report title;
    title.add("C++ stack:\n");
    title.write_to(STDERR_FILENO);
    backtrace_symbols_fd(frames.data(), backtrace(frames.data(), limits::crash_frames_max), STDERR_FILENO);
  }
  std::abort();
}

}  // namespace miniray
