// Checks of what must hold whatever a user passes, a peer sends or the system returns: a check that fails is a bug in
// MiniRay. Checks are on in release too. One that fails writes the condition, its place in the source and the values to
// standard error, asks for a report, and aborts.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace miniray {

/// Where a check stands, and what it says. One for each check, made by the compiler.
struct CheckSite {
  const char* file;
  int line;
  const char* condition;
  const char* names;  ///< of the values, as the source has them; empty if there are none
};

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
  CheckValue(double value) : kind(Kind::real), real(value) {}                    // NOLINT(google-explicit-constructor)
  CheckValue(std::string_view value) : kind(Kind::text), text(value) {}          // NOLINT(google-explicit-constructor)
  CheckValue(const std::string& value) : CheckValue(std::string_view(value)) {}  // NOLINT(google-explicit-constructor)
  CheckValue(const char* value) : CheckValue(std::string_view(value)) {}         // NOLINT(google-explicit-constructor)

  Kind kind;
  std::uint64_t integer = 0;
  double real = 0;
  std::string_view text;
};

/// Reports the check and aborts. It takes no memory, which may be what is broken.
[[noreturn, gnu::cold, gnu::noinline]] void check_failed(const CheckSite& site,
                                                         std::initializer_list<CheckValue> values);

}  // namespace miniray

#define MINIRAY_CHECK(condition, ...)                                                                    \
  do {                                                                                                   \
    if (!(condition)) [[unlikely]] {                                                                     \
      static constexpr ::miniray::CheckSite site_of_check{__FILE__, __LINE__, #condition, #__VA_ARGS__}; \
      ::miniray::check_failed(site_of_check, {__VA_ARGS__});                                             \
    }                                                                                                    \
  } while (false)
