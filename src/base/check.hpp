// MINIRAY_CHECK checks a condition that must hold whatever the caller passes, a peer sends or the system answers. If it
// does not hold, MiniRay has a bug. Checks are on in release builds too. A failed check writes the condition, its place
// in the source and the values to standard error, asks for a bug report, and aborts.
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
  // The text is not copied, so it has to outlive this object.
  CheckValue(const char* value) : kind(Kind::text), text(value) {}     // NOLINT(google-explicit-constructor)
  CheckValue(const std::string& value) : CheckValue(value.c_str()) {}  // NOLINT(google-explicit-constructor)

  Kind kind;
  union {
    std::uint64_t integer;
    double real;
    const char* text;
  };
};

/// Reports the check and aborts. `check` consists of three texts, each with a null character after it: the place in the
/// source, the condition and the names of the values. The function allocates no memory, because the heap may be broken.
[[noreturn, gnu::cold, gnu::noinline]] void check_failed(const char* check, std::initializer_list<CheckValue> values);

}  // namespace miniray

// The three texts are one literal, so that a check needs one pointer and no table of addresses.
#define MINIRAY_CHECK_TEXT_OF(number) #number
#define MINIRAY_CHECK_PLACE(file, line) file ":" MINIRAY_CHECK_TEXT_OF(line)
#define MINIRAY_CHECK(condition, ...)                                                                    \
  do {                                                                                                   \
    if (!(condition)) [[unlikely]]                                                                       \
      ::miniray::check_failed(MINIRAY_CHECK_PLACE(__FILE__, __LINE__) "\0" #condition "\0" #__VA_ARGS__, \
                              {__VA_ARGS__});                                                            \
  } while (false)
