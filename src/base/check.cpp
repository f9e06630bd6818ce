#include "base/check.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/crash.hpp"
#include "base/stack_text.hpp"
#include "base/stack_trace.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
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

void print_stack(const StackTrace& stack) {
  std::string text;
  try {
    const Fd file = system::memory_file("miniray-stack");
    write_titled_stack(file.get(), "C++ stack:", stack);
    text = readable_stacks(system::read_memory_file(file.get(), limits::crash_report_bytes_max), OwnCalls::keep_all);
  } catch (const Error&) {  // no descriptor is left, for example
    return stack.write_addresses(STDERR_FILENO);
  }
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

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
    StackTrace stack;
    stack.take();
    print_stack(stack);
  }
  std::abort();
}

}  // namespace miniray
