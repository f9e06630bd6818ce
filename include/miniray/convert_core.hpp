// The part of convert.hpp that every conversion uses: Convert itself, its error, and the types that a Value holds.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/error.hpp"
#include "miniray/export.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

/// A value does not have the expected type. what() is "expected double, but [3] is a string: "abc"".
class Mismatch : public ValueError {
 public:
  Mismatch(std::string wanted, const Value& found);
  /// Makes a Mismatch with a description of the value in words, such as "is an array of int64".
  static Mismatch saying(std::string wanted, std::string found) {
    return {std::move(wanted), Place{}, std::move(found)};
  }

  [[nodiscard]] const std::string& wanted() const { return wanted_; }  ///< "double"
  [[nodiscard]] const std::string& place() const { return place_; }    ///< "[3]"; empty for the value itself
  [[nodiscard]] const std::string& found() const { return found_; }    ///< "is a string: "abc""
  /// Returns this mismatch as seen from the container around it; `step` is the place inside that container.
  [[nodiscard]] Mismatch inside(const std::string& step) const { return {wanted_, Place{step + place_}, found_}; }

 private:
  struct Place {
    std::string text;
  };
  Mismatch(std::string wanted, Place place, std::string found);

  std::string wanted_, place_, found_;
};

namespace detail {

enum class Category : std::uint8_t;
template <class T>
consteval Category category_of();
/// How a type is converted for which Convert is not specialised. It is empty if the type cannot be converted.
template <class T, Category category = category_of<T>()>
struct ConvertDefault {};

/// Whether a T refers to the memory of the value that it was converted from.
template <class T>
inline constexpr bool refers_to_value = false;
template <>
inline constexpr bool refers_to_value<std::string_view> = true;
template <class T, std::size_t extent>
inline constexpr bool refers_to_value<std::span<T, extent>> = true;
template <class T, std::size_t size>
inline constexpr bool refers_to_value<std::array<T, size>> = refers_to_value<T>;
template <template <class...> class Template, class... Arguments>
inline constexpr bool refers_to_value<Template<Arguments...>> = (refers_to_value<Arguments> || ...);

/// Throws the ValueError that is being handled again, as a Mismatch whose place begins with `step`.
[[noreturn]] void throw_inside(const std::string& step);
[[nodiscard]] std::string step_of(std::size_t index);      // [3]
[[nodiscard]] std::string step_of(std::string_view name);  // ["x"]
[[nodiscard]] inline std::string step_of(const Value& key) { return "[" + key.text() + "]"; }

}  // namespace detail

/// Converts one type. Specialise it for a type of your own that fields.hpp cannot describe. Its functions are name(),
/// which errors show; from(const Value&), which throws Mismatch and may return a reference into the value if the value
/// holds exactly this type; and to(const T&). A type that is only sent needs no from().
template <class T>
struct Convert : detail::ConvertDefault<T> {};

template <class T>
concept Receivable = requires(const Value& value) {
  { Convert<T>::name() } -> std::convertible_to<std::string>;
  { Convert<T>::from(value) } -> std::convertible_to<T>;
};
template <class T>
concept Sendable = requires(const T& object) {
  { Convert<T>::to(object) } -> std::convertible_to<Value>;
};

namespace detail {

/// What a container may have as items, to be sent.
template <class T>
concept SendableItem = Sendable<T> || std::is_convertible_v<const T&, Value>;

}  // namespace detail

/// Converts a value to T. Throws Mismatch. A T that refers to memory, such as std::span, refers to the value's.
template <class T>
[[nodiscard]] T convert(const Value& value MINIRAY_LIFETIMEBOUND) {
  static_assert(
      Receivable<T>,
      "miniray cannot convert a value to this type: describe the class with fields() (miniray/fields.hpp), or "
      "specialise miniray::Convert for it, with name() and from()");
  return Convert<T>::from(value);
}
/// The same for a value that may be changed, which is needed for a std::span of elements that are not const.
template <class T>
[[nodiscard]] T convert(Value& value MINIRAY_LIFETIMEBOUND) {
  if constexpr (!Receivable<T> && requires { Convert<T>::from(value); })
    return Convert<T>::from(value);
  else
    return convert<T>(std::as_const(value));
}
/// The same for a value that is no longer needed. Strings, lists, maps and arrays are moved out of it.
template <class T>
  requires(!detail::refers_to_value<T>)
[[nodiscard]] T convert(Value&& value) {
  if constexpr (std::same_as<T, Value>) return std::move(value);
  if constexpr (std::same_as<T, std::string>)
    if (value.is_string()) return std::move(value).string();
  if constexpr (std::same_as<T, List>)
    if (value.is_list()) return std::move(value).list();
  if constexpr (std::same_as<T, Map>)
    if (value.is_map()) return std::move(value).map();
  if constexpr (std::same_as<T, Array>)
    if (value.is_array()) return std::move(value).array();
  return convert<T>(std::as_const(value));
}
/// Deleted, because the result would refer to a value that is gone: give the value a name, or convert it to a type that
/// owns its content, such as std::string or std::vector.
template <class T>
  requires detail::refers_to_value<T>
T convert(const Value&& value) = delete;

/// Converts an object to a value, through Convert<T>::to or Value's constructors. It moves what it can out of an object
/// that is given with std::move. T is the object's type unless another is named.
template <class T = void, class Object>
[[nodiscard]] Value to_value(Object&& object) {
  using Given = std::remove_cvref_t<Object>;
  using Plain = std::decay_t<std::conditional_t<std::is_void_v<T>, Given, T>>;
  if constexpr (Sendable<Plain> && std::is_same_v<Plain, Given>) {
    return Convert<Plain>::to(std::forward<Object>(object));
  } else if constexpr (Sendable<Plain>) {
    return Convert<Plain>::to(static_cast<const Plain&>(object));
  } else {
    static_assert(std::is_convertible_v<Object, Value>,
                  "miniray cannot send this type: describe the class with fields() (miniray/fields.hpp), or specialise "
                  "miniray::Convert for it, with to()");
    return Value(std::forward<Object>(object));
  }
}

// --- Types that a value holds ----------------------------------------------------------------------------------------
template <>
struct Convert<Value> {
  static std::string name() { return "any value"; }
  static const Value& from(const Value& value) { return value; }  // NOLINT(bugprone-return-const-ref-from-parameter)
  static const Value& from(Value&& value) = delete;
  static Value to(Value value) { return value; }
};
template <>
struct Convert<std::string> {
  static std::string name() { return "string"; }
  static const std::string& from(const Value& value);
  static Value to(std::string string) { return string; }
};
template <>
struct Convert<List> {
  static std::string name() { return "list"; }
  static const List& from(const Value& value);
  static Value to(List list) { return list; }
};
template <>
struct Convert<Map> {
  static std::string name() { return "map"; }
  static const Map& from(const Value& value);
  static Value to(Map map) { return map; }
};
template <class Container>
struct Convert<TakenOut<Container>> : Convert<Container> {};
template <>
struct Convert<Array> {
  static std::string name() { return "array"; }
  static const Array& from(const Value& value);
  static Value to(Array array) { return array; }
};
template <>
struct Convert<Bytes> {
  static std::string name() { return "bytes"; }
  static Bytes from(const Value& value);
  static Value to(Bytes bytes) { return bytes; }
};
/// A std::string_view argument of a called function is valid until that function returns.
template <>
struct Convert<std::string_view> {
  static std::string name() { return "string"; }
  static std::string_view from(const Value& value) { return Convert<std::string>::from(value); }
  static Value to(std::string_view string) { return string; }
};
template <>
struct Convert<bool> {
  static std::string name() { return "bool"; }
  static bool from(const Value& value);
  static Value to(bool boolean) { return boolean; }
};

// --- Parts of values -------------------------------------------------------------------------------------------------
namespace detail {

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
/// Returns the value of a key, or nullptr. Throws Mismatch if the value is no map.
[[nodiscard]] const Value* find_field(const Value& value, std::string_view name);
[[noreturn]] void throw_missing(std::string wanted, const Value& map, std::string_view name);
[[noreturn]] void throw_missing(std::string wanted, const Value& list, std::size_t index);

}  // namespace detail

/// Converts the value of a key, for a Convert that takes a map apart. Throws Mismatch, whose place is the key, if the
/// value is no map, if it does not have the key, or if the key has a value of another type. Only a std::optional may be
/// missing.
template <class T>
[[nodiscard]] T field(const Value& value MINIRAY_LIFETIMEBOUND, std::string_view name) {
  const Value* found = detail::find_field(value, name);
  if constexpr (detail::is_optional<T>) {
    if (found == nullptr) return T();
  }
  if (found == nullptr) detail::throw_missing(Convert<T>::name(), value, name);
  try {
    return convert<T>(*found);
  } catch (const ValueError&) {
    detail::throw_inside(detail::step_of(name));
  }
}
/// Converts an element of a list, with errors as field() has them.
template <class T>
[[nodiscard]] T element(const Value& value MINIRAY_LIFETIMEBOUND, std::size_t index) {
  const List& list = Convert<List>::from(value);
  if (index >= list.size()) detail::throw_missing(Convert<T>::name(), value, index);
  try {
    return convert<T>(list[index]);
  } catch (const ValueError&) {
    detail::throw_inside(detail::step_of(index));
  }
}
// Deleted, because the results would refer to a value that is gone.
template <class T>
  requires detail::refers_to_value<T>
T field(const Value&& value, std::string_view name) = delete;
template <class T>
  requires detail::refers_to_value<T>
T element(const Value&& value, std::size_t index) = delete;

}  // namespace miniray
