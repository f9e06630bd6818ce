// Checks of what must hold whatever a user passes, a peer sends or the system returns: a check that fails is a bug in
// MiniRay. Checks are on in release too. One that fails writes the condition, its place in the source and the values to
// standard error, asks for a report, and aborts.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace miniray {

/// A value that a check prints.
class CheckValue {
 public:
  enum class Kind : std::uint8_t { boolean, signed_integer, unsigned_integer, real, text };

  template <std::integral Number>
  CheckValue(Number value)  // NOLINT(google-explicit-constructor): values are listed
      : kind(std::same_as<Number, bool> ? Kind::boolean
             : std::is_signed_v<Number> ? Kind::signed_integer
                                        : Kind::unsigned_integer),
        integer(static_cast<std::uint64_t>(value)) {}
  template <class Enumerator>
    requires std::is_enum_v<Enumerator>
  CheckValue(Enumerator value)  // NOLINT(google-explicit-constructor)
      : CheckValue(static_cast<std::underlying_type_t<Enumerator>>(value)) {}
  CheckValue(double value) : kind(Kind::real), real(value) {}  // NOLINT(google-explicit-constructor)
  // It has to live until the check has failed, which is as long as the process does.
  CheckValue(const char* value) : kind(Kind::text), text(value) {}     // NOLINT(google-explicit-constructor)
  CheckValue(const std::string& value) : CheckValue(value.c_str()) {}  // NOLINT(google-explicit-constructor)

  Kind kind;
  union {
    std::uint64_t integer;
    double real;
    const char* text;
  };
};

/// Reports the check and aborts. `check` has its place in the source, its condition and the names of its values, with a
/// null character after each. It takes no memory, which may be what is broken.
[[noreturn, gnu::cold, gnu::noinline]] void check_failed(const char* check, std::initializer_list<CheckValue> values);

}  // namespace miniray

// All of its texts are one, so that a check takes a pointer and the values, and no table with addresses in it.
#define MINIRAY_CHECK_TEXT_OF(number) #number
#define MINIRAY_CHECK_PLACE(file, line) file ":" MINIRAY_CHECK_TEXT_OF(line)
#define MINIRAY_CHECK(condition, ...)                                                                    \
  do {                                                                                                   \
    if (!(condition)) [[unlikely]]                                                                       \
      ::miniray::check_failed(MINIRAY_CHECK_PLACE(__FILE__, __LINE__) "\0" #condition "\0" #__VA_ARGS__, \
                              {__VA_ARGS__});                                                            \
  } while (false)
