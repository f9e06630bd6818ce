// Converts C++ types to values of messages and back. Functions that are called remotely use it for their arguments and
// results, and so do their callers.
//
//   double x = miniray::convert<double>(value);   // throws Mismatch if the value is not a number
//   miniray::Value value = miniray::to_value(x);
//
// To convert a type of your own, specialise Convert:
//
//   template <>
//   struct miniray::Convert<Point> {
//     static std::string name() { return "Point"; }
//     static Point from(const Value& value) { return {convert<double>(value["x"]), convert<double>(value["y"])}; }
//     static Value to(const Point& point) { return {{"x", point.x}, {"y", point.y}}; }
//   };
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
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

/// Specialised for each type that can be converted. from() may return a reference into the value if the value holds
/// exactly this type; a type that is only sent needs no from().
template <class T>
struct Convert;

template <class T>
concept Receivable = requires(const Value& value) {
  { Convert<T>::name() } -> std::convertible_to<std::string>;
  { Convert<T>::from(value) } -> std::convertible_to<T>;
};
template <class T>
concept Sendable = requires(const T& object) {
  { Convert<T>::to(object) } -> std::convertible_to<Value>;
};

/// Converts a value to T. Throws Mismatch. A T that refers to memory, such as std::span, refers to the value's.
template <class T>
[[nodiscard]] T convert(const Value& value) {
  static_assert(Receivable<T>, "specialise miniray::Convert for this type, with name() and from()");
  return Convert<T>::from(value);
}

/// Converts an object to a value, through Convert<T>::to or Value's constructors.
template <class T>
[[nodiscard]] Value to_value(const T& object) {
  using Plain = std::decay_t<const T>;
  if constexpr (Sendable<Plain>)
    return Convert<Plain>::to(object);
  else {
    static_assert(std::is_convertible_v<const T&, Value>, "specialise miniray::Convert for this type, with to()");
    return Value(object);
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

/// Conversion for the types that a Value stores and returns by reference.
template <class T, Value::Kind kind, const T& (Value::*get)() const>
struct ConvertHeld {
  static std::string name() {
    const std::string_view with_article = name_of(kind);
    return std::string(with_article.substr(with_article.find(' ') + 1));
  }
  static const T& from(const Value& value) {
    if (value.kind() != kind) throw Mismatch(name(), value);
    return (value.*get)();
  }
  static Value to(const T& object) { return object; }
};
template <>
struct Convert<std::string> : ConvertHeld<std::string, Value::Kind::string, &Value::string> {};
template <>
struct Convert<List> : ConvertHeld<List, Value::Kind::list, &Value::list> {};
template <>
struct Convert<Map> : ConvertHeld<Map, Value::Kind::map, &Value::map> {};
template <>
struct Convert<Array> : ConvertHeld<Array, Value::Kind::array, &Value::array> {};
template <>
struct Convert<Bytes> {
  static std::string name() { return "bytes"; }
  static Bytes from(const Value& value) {
    if (value.kind() != Value::Kind::bytes) throw Mismatch(name(), value);
    return {value.bytes()};
  }
  static Value to(const Bytes& bytes) { return bytes; }
};
/// A std::string_view argument of a called function is valid until that function returns.
template <>
struct Convert<std::string_view> {
  static std::string name() { return "string"; }
  static std::string_view from(const Value& value) { return Convert<std::string>::from(value); }
  static Value to(std::string_view string) { return string; }
};

// --- Numbers ---------------------------------------------------------------------------------------------------------
template <>
struct Convert<bool> {
  static std::string name() { return "bool"; }
  static bool from(const Value& value) {
    if (value.kind() != Value::Kind::boolean) throw Mismatch(name(), value);
    return value.boolean();
  }
  static Value to(bool boolean) { return boolean; }
};

template <std::integral T>
struct Convert<T> {
  static std::string name() {
    if (std::same_as<T, int>) return "int";
    return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
  }
  static T from(const Value& value) {
    if (value.kind() == Value::Kind::integer) {
      if (std::in_range<T>(value.integer())) return static_cast<T>(value.integer());
    } else if (value.kind() == Value::Kind::unsigned_integer) {
      if (std::in_range<T>(value.unsigned_integer())) return static_cast<T>(value.unsigned_integer());
    } else {
      throw Mismatch(name(), value);
    }
    throw Mismatch::saying(name(), "is " + value.text() + ", which it cannot hold");
  }
  static Value to(T integer) { return integer; }
};

/// Integers convert to floating point too, as elsewhere in C++.
template <std::floating_point T>
struct Convert<T> {
  static std::string name() { return std::same_as<T, float> ? "float" : std::same_as<T, double> ? "double" : "real"; }
  static T from(const Value& value) {
    if (value.kind() != Value::Kind::real && value.kind() != Value::Kind::integer &&
        value.kind() != Value::Kind::unsigned_integer)
      throw Mismatch(name(), value);
    const double real = value.real();
    if (sizeof(T) < sizeof(double) && std::isfinite(real) &&
        std::abs(real) > static_cast<double>(std::numeric_limits<T>::max()))
      throw Mismatch::saying(name(), "is " + value.text() + ", which it cannot hold");
    return static_cast<T>(real);
  }
  static Value to(T real) { return static_cast<double>(real); }
};

/// The elements of an array in C order, not copied. A span argument of a called function is valid until that function
/// returns.
template <class T>
struct Convert<std::span<const T>> {
  static std::string name() { return std::string("array of ") + name_of(dtype_of<T>()); }
  static std::span<const T> from(const Value& value) {
    if (value.kind() != Value::Kind::array) throw Mismatch(name(), value);
    if (value.array().dtype() != dtype_of<T>())
      throw Mismatch::saying(name(), std::string("is an array of ") + name_of(value.array().dtype()));
    return value.array().elements<const T>();
  }
  static Value to(std::span<const T> elements) { return Array::of(std::vector<T>(elements.begin(), elements.end())); }
};

// --- Containers ------------------------------------------------------------------------------------------------------
/// Converts from a list. A vector of numbers also converts from a one-dimensional array of exactly that type.
template <class T>
struct Convert<std::vector<T>> {
  static std::string name() { return "list of " + Convert<T>::name(); }
  static std::vector<T> from(const Value& value) {
    if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool>) {
      if (value.kind() == Value::Kind::array && value.array().shape().size() == 1) {
        const std::span<const T> elements = Convert<std::span<const T>>::from(value);
        return {elements.begin(), elements.end()};
      }
    }
    if (value.kind() != Value::Kind::list) throw Mismatch(name(), value);
    std::vector<T> result;
    result.reserve(value.list().size());
    for (std::size_t i = 0; i < value.list().size(); ++i) {
      try {
        result.push_back(convert<T>(value.list()[i]));
      } catch (const Mismatch& mismatch) {
        throw mismatch.inside("[" + std::to_string(i) + "]");
      }
    }
    return result;
  }
  static Value to(const std::vector<T>& elements) {
    List list;
    list.reserve(elements.size());
    for (const auto& element : elements) list.push_back(to_value<T>(element));
    return list;
  }
};

template <class T>
struct Convert<std::map<std::string, T>> {
  static std::string name() { return "map of " + Convert<T>::name(); }
  static std::map<std::string, T> from(const Value& value) {
    std::map<std::string, T> result;
    for (const auto& [key, element] : Convert<Map>::from(value)) {
      if (key.kind() != Value::Kind::string)
        throw Mismatch::saying("string", "has a key that is no string: " + key.text());
      try {
        result.insert_or_assign(key.string(), convert<T>(element));
      } catch (const Mismatch& mismatch) {
        throw mismatch.inside("[" + key.text() + "]");
      }
    }
    return result;
  }
  static Value to(const std::map<std::string, T>& elements) {
    Map map;
    map.reserve(elements.size());
    for (const auto& [key, element] : elements) map.emplace_back(key, to_value<T>(element));
    return map;
  }
};

template <class T>
struct Convert<std::optional<T>> {
  static std::string name() { return Convert<T>::name() + " or null"; }
  static std::optional<T> from(const Value& value) {
    if (value.is_null()) return std::nullopt;
    return convert<T>(value);
  }
  static Value to(const std::optional<T>& object) { return object ? to_value<T>(*object) : Value(); }
};

/// Converts from a list that has exactly as many elements as the tuple.
template <class Tuple>
struct ConvertTuple {
  static std::string name() {
    std::string names;
    each([&]<std::size_t i>() { names += (i == 0 ? "" : ", ") + Convert<std::tuple_element_t<i, Tuple>>::name(); });
    return "(" + names + ")";
  }
  static Tuple from(const Value& value) {
    if (value.kind() != Value::Kind::list) throw Mismatch(name(), value);
    if (value.list().size() != std::tuple_size_v<Tuple>)
      throw Mismatch::saying(name(), "is a list of " + std::to_string(value.list().size()) + ": " + value.text());
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return Tuple{element<i>(value)...};
    }(std::make_index_sequence<std::tuple_size_v<Tuple>>());
  }
  static Value to(const Tuple& tuple) {
    List list;
    each([&]<std::size_t i>() { list.push_back(to_value<std::tuple_element_t<i, Tuple>>(std::get<i>(tuple))); });
    return list;
  }

 private:
  template <class Function>
  static void each(Function function) {
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (function.template operator()<i>(), ...);
    }(std::make_index_sequence<std::tuple_size_v<Tuple>>());
  }
  template <std::size_t i>
  static std::tuple_element_t<i, Tuple> element(const Value& value) {
    try {
      return convert<std::tuple_element_t<i, Tuple>>(value.list()[i]);
    } catch (const Mismatch& mismatch) {
      throw mismatch.inside("[" + std::to_string(i) + "]");
    }
  }
};
template <class... Elements>
struct Convert<std::tuple<Elements...>> : ConvertTuple<std::tuple<Elements...>> {};
template <class First, class Second>
struct Convert<std::pair<First, Second>> : ConvertTuple<std::pair<First, Second>> {};

}  // namespace miniray
