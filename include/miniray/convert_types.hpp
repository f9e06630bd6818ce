// The part of convert.hpp for types that hold one thing: numbers, enums, times, paths, optionals, variants, structs,
// and spans of an array's elements.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/convert_core.hpp"
#include "miniray/export.hpp"
#include "miniray/fields.hpp"

namespace MINIRAY_API miniray {

// --- Which conversion a type gets ------------------------------------------------------------------------------------
// Types of the standard library are recognised by what they can do, so that this header need not include all of it.
namespace detail {

template <class T>
concept Duration = requires(const T& object) {
  typename T::rep;
  T::period::num;
  T::period::den;
  { object.count() } -> std::same_as<typename T::rep>;
};
template <class T>
concept TimePoint = requires(const T& object) {
  typename T::clock;
  requires Duration<typename T::duration>;
  { object.time_since_epoch() } -> std::same_as<typename T::duration>;
};
template <class T>
concept Path = requires(const T& object) {
  T::preferred_separator;
  { object.native() } -> std::same_as<const std::string&>;
  object.lexically_normal();
};
template <class T>
concept Range = requires(const T& object) {
  typename T::value_type;
  object.begin();
  object.end();
};
template <class T>
concept MapLike = Range<T> && requires(T& object, typename T::key_type key, typename T::mapped_type mapped) {
  object.insert_or_assign(std::move(key), std::move(mapped));
};
template <class T>
concept SetLike = Range<T> && requires(T& object, typename T::key_type key) { object.insert(std::move(key)); } &&
                  std::same_as<typename T::key_type, typename T::value_type>;
template <class T>
concept Sequence = Range<T> && requires(T& object, typename T::value_type item) { object.push_back(std::move(item)); };
template <class T>
concept Variant = requires(const T& object) {
  object.index();
  object.valueless_by_exception();
};

enum class Category : std::uint8_t {
  unknown,
  integer,
  real,
  enumeration,
  duration,
  time_point,
  path,
  map,
  set,
  sequence,
  variant,
  empty,
  members,
};

template <class T>
consteval Category category_of() {
  if constexpr (std::is_enum_v<T>)
    return std::is_same_v<T, std::byte> ? Category::unknown : Category::enumeration;
  else if constexpr (std::integral<T>)
    return Category::integer;
  else if constexpr (std::floating_point<T>)
    return Category::real;
  else if constexpr (!std::is_class_v<T> || requires(const T& object) { object.operator Value(); })
    return Category::unknown;  // NOLINT(bugprone-branch-clone): the order of the branches matters
  else if constexpr (DescribedClass<T>)
    return Category::members;
  else if constexpr (Duration<T>)
    return Category::duration;
  else if constexpr (TimePoint<T>)
    return Category::time_point;
  else if constexpr (Path<T>)
    return Category::path;
  else if constexpr (MapLike<T>)
    return Category::map;
  else if constexpr (SetLike<T>)
    return Category::set;
  else if constexpr (Sequence<T>)
    return Category::sequence;
  else if constexpr (Variant<T>)
    return Category::variant;
  else if constexpr (std::is_aggregate_v<T>)
    return std::is_empty_v<T> ? Category::empty : Category::members;
  else
    return Category::unknown;
}

// The parts that need no template. `name` is that of the wanted type.
[[nodiscard]] std::int64_t integer_from(const Value& value, std::int64_t least, std::int64_t most, const char* name);
[[nodiscard]] std::uint64_t unsigned_from(const Value& value, std::uint64_t most, const char* name);
[[nodiscard]] double real_from(const Value& value, double most, const char* name);
/// A duration in units of num/den seconds, from seconds; and a time in such units, from nanoseconds or real seconds.
[[nodiscard]] long double ticks_from_duration(const Value& value, std::intmax_t num, std::intmax_t den);
[[nodiscard]] long double ticks_from_time(const Value& value, std::intmax_t num, std::intmax_t den);
[[nodiscard]] Value time_value(std::int64_t ticks, std::intmax_t num, std::intmax_t den);
[[nodiscard]] Value path_value(const std::string& path);
[[nodiscard]] const std::string& path_from(const Value& value);
[[noreturn]] void throw_cannot_hold(const char* name, const Value& value);

template <class T>
constexpr const char* number_name() {
  if constexpr (std::floating_point<T>)
    return std::same_as<T, float> ? "float" : std::same_as<T, double> ? "double" : "real";
  else if constexpr (std::same_as<T, int>)
    return "int";
  else if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 1 ? "int8" : sizeof(T) == 2 ? "int16" : sizeof(T) == 4 ? "int32" : "int64";
  else
    return sizeof(T) == 1 ? "uint8" : sizeof(T) == 2 ? "uint16" : sizeof(T) == 4 ? "uint32" : "uint64";
}

// --- Numbers ---------------------------------------------------------------------------------------------------------
template <class T>
struct ConvertDefault<T, Category::integer> {
  static std::string name() { return number_name<T>(); }
  static T from(const Value& value) {
    constexpr T most = std::numeric_limits<T>::max();
    if constexpr (std::is_signed_v<T>)
      return static_cast<T>(integer_from(value, std::numeric_limits<T>::min(), most, number_name<T>()));
    else
      return static_cast<T>(unsigned_from(value, most, number_name<T>()));
  }
  static Value to(T integer) { return integer; }
};

/// Integers convert to floating point too, as elsewhere in C++.
template <class T>
struct ConvertDefault<T, Category::real> {
  static std::string name() { return number_name<T>(); }
  static T from(const Value& value) {
    constexpr double most = std::same_as<T, float> ? static_cast<double>(std::numeric_limits<float>::max())
                                                   : std::numeric_limits<double>::infinity();
    return static_cast<T>(real_from(value, most, number_name<T>()));
  }
  static Value to(T real) { return static_cast<double>(real); }
};

/// An enum is a string if enumerators_of names its values, else a number.
template <class T>
struct ConvertDefault<T, Category::enumeration> {
  using Number = std::underlying_type_t<T>;
  static std::string name() {
    std::string result(type_name<T>());
    if constexpr (DescribedEnum<T>) {
      for (const auto& enumerator : enumerators_of<T>)
        result.append(&enumerator == &enumerators_of<T>.front() ? " (one of " : ", ").append(enumerator.name);
      result += ")";
    }
    return result;
  }
  static T from(const Value& value) {
    if constexpr (DescribedEnum<T>) {
      for (const auto& enumerator : enumerators_of<T>)
        if (value == enumerator.name) return enumerator.value;
      throw Mismatch(name(), value);
    } else {
      return static_cast<T>(Convert<Number>::from(value));
    }
  }
  static Value to(T object) {
    if constexpr (DescribedEnum<T>) {
      for (const auto& enumerator : enumerators_of<T>)
        if (object == enumerator.value) return enumerator.name;
      throw Unsendable("cannot send a value of " + name() + " that has no name");
    } else {
      return static_cast<Number>(object);
    }
  }
};

// --- Times and paths -------------------------------------------------------------------------------------------------
template <class T>
T ticks_as(long double ticks, const char* name, const Value& value) {
  if constexpr (std::integral<T>) {
    // The upper limit is one more than the largest number, because that is exact in floating point.
    if (!(ticks >= static_cast<long double>(std::numeric_limits<T>::min()) &&
          ticks < static_cast<long double>(std::numeric_limits<T>::max() / 2 + 1) * 2))
      throw_cannot_hold(name, value);
  }
  return static_cast<T>(ticks);
}

/// Seconds. They are exact for 26 days in nanoseconds, and for 71 years in microseconds.
template <class T>
struct ConvertDefault<T, Category::duration> {
  using Period = typename T::period;
  static std::string name() { return "duration in seconds"; }
  static T from(const Value& value) {
    long double ticks = ticks_from_duration(value, Period::num, Period::den);
    if constexpr (std::integral<typename T::rep>) ticks += ticks < 0 ? -0.5L : 0.5L;  // rounds to the nearest tick
    return T(ticks_as<typename T::rep>(ticks, "duration in seconds", value));
  }
  static Value to(const T& duration) {
    return static_cast<double>(static_cast<long double>(duration.count()) * Period::num / Period::den);
  }
};

template <class T>
struct ConvertDefault<T, Category::time_point> {
  using Ticks = typename T::duration;
  using Period = typename Ticks::period;
  static std::string name() { return "time in nanoseconds"; }
  static T from(const Value& value) {
    const long double ticks = ticks_from_time(value, Period::num, Period::den);
    return T(Ticks(ticks_as<typename Ticks::rep>(ticks, "time in nanoseconds", value)));
  }
  static Value to(const T& time) {
    if constexpr (std::integral<typename Ticks::rep>)
      return time_value(time.time_since_epoch().count(), Period::num, Period::den);
    else
      return Convert<Ticks>::to(time.time_since_epoch());
  }
};

template <class T>
struct ConvertDefault<T, Category::path> {
  static std::string name() { return "path"; }
  static T from(const Value& value) { return T(path_from(value)); }
  static Value to(const T& path) { return path_value(path.native()); }
};

// --- Variants and structs --------------------------------------------------------------------------------------------
template <template <class...> class Template, class... Alternatives>
struct ConvertDefault<Template<Alternatives...>, Category::variant> {
  using T = Template<Alternatives...>;
  static std::string name() {
    std::string names;
    ((names += (names.empty() ? "" : " or ") + Convert<Alternatives>::name()), ...);
    return names;
  }
  static T from(const Value& value)
    requires(Receivable<Alternatives> && ...)
  {
    std::optional<T> result;
    (try_one<Alternatives>(value, result), ...);
    if (!result) throw Mismatch(name(), value);
    return std::move(*result);
  }
  static Value to(const T& object)
    requires(SendableItem<Alternatives> && ...)
  {
    Value value;
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      ((object.index() == i ? void(value = to_value<Alternatives>(*get_if<i>(&object))) : void()), ...);
    }(std::index_sequence_for<Alternatives...>());
    return value;
  }

 private:
  template <class Alternative>
  static void try_one(const Value& value, std::optional<T>& result) {
    if (result) return;
    try {
      result.emplace(convert<Alternative>(value));
    } catch (const ValueError&) {
      return;  // another alternative may accept the value
    }
  }
};

/// A struct without members, and std::monostate, is null.
template <class T>
struct ConvertDefault<T, Category::empty> {
  static std::string name() { return "null"; }
  static T from(const Value& value) {
    if (!value.is_null()) throw Mismatch(name(), value);
    return T{};
  }
  static Value to(const T&) { return nullptr; }
};

template <class T>
struct ConvertDefault<T, Category::members> {
  static std::string name() { return std::string(type_name<T>()); }
  static T from(const Value& value) {
    static_assert(std::is_default_constructible_v<T>,
                  "to receive this class, give it a default constructor, or specialise miniray::Convert for it");
    if (!value.is_map()) throw Mismatch(name(), value);
    T object{};
    each_member(object, [&]<class Member>(std::string_view member_name, Member& member) {
      static_assert(!refers_to_value<Member>,
                    "a member of a received class owns its content: use std::string or std::vector");
      static_assert(Receivable<Member>,
                    "miniray cannot convert a value to this member's type: describe the class with fields() "
                    "(miniray/fields.hpp), or specialise miniray::Convert for it, with name() and from()");
      member = field<Member>(value, member_name);
    });
    return object;
  }
  static Value to(const T& object) {
    Map map;
    each_member(object, [&](std::string_view member_name, const auto& member) {
      map.emplace_back(Value(member_name), to_value(member));
    });
    return map;
  }
};

}  // namespace detail

template <class T>
struct Convert<std::optional<T>> {
  static std::string name() { return Convert<T>::name() + " or null"; }
  static std::optional<T> from(const Value& value)
    requires Receivable<T>
  {
    if (value.is_null()) return std::nullopt;
    return convert<T>(value);
  }
  static Value to(const std::optional<T>& object)
    requires detail::SendableItem<T>
  {
    return object ? to_value<T>(*object) : Value();
  }
};

// --- Elements of arrays ----------------------------------------------------------------------------------------------
namespace detail {

/// Returns the array. Throws Mismatch if the value is none, or if its elements are of another type.
[[nodiscard]] const Array& array_from(const Value& value, DType dtype);

}  // namespace detail

/// The elements of an array in C order, not copied. A span argument of a called function is valid until that function
/// returns. Sending copies the elements; to send them without a copy, use Array::view().
template <class T>
struct Convert<std::span<const T>> {
  static std::string name() { return std::string("array of ") + name_of(dtype_of<T>()); }
  static std::span<const T> from(const Value& value) {
    return detail::array_from(value, dtype_of<T>()).template elements<T>();
  }
  static Value to(std::span<const T> elements) { return Array::of(std::vector<T>(elements.begin(), elements.end())); }
};
/// The same for writing, from a value that may be changed; see Array::mutable_elements().
template <class T>
  requires(!std::is_const_v<T>)
struct Convert<std::span<T>> {
  static std::string name() { return Convert<std::span<const T>>::name(); }
  static std::span<T> from(Value& value) {
    (void)detail::array_from(value, dtype_of<T>());
    return value.template mutable_array<T>();
  }
  static Value to(std::span<const T> elements) { return Convert<std::span<const T>>::to(elements); }
};

}  // namespace miniray
