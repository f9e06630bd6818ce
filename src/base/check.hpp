// Assertions for our own bugs. They are on in release too, print the values and abort.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace miniray {

template <class... Values>
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const Values&... values) {
  std::ostringstream text;
  ((text << ' ' << values), ...);
  std::fprintf(stderr, "miniray: %s:%d: this should hold: %s. The values:%s\n", file, line, condition,
               text.str().c_str());
  std::abort();
}

}  // namespace miniray

#define MINIRAY_CHECK(condition, ...)                                                     \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::miniray::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
