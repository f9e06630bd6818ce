// A message as a C++ program sees it. It is written and read like JSON:
//   worker.send({{"cmd", "multiply"}, {"A", a}});
//   if (msg["cmd"] == "shutdown") ...; auto a = msg["A"].array<double>();
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "miniray/array.hpp"

namespace miniray {

class Value;
using List = std::vector<Value>;
/// In the order in which it was written. Keys are null, bool, numbers, strings or bytes.
using Map = std::vector<std::pair<Value, Value>>;
/// Bytes, as opposed to text.
struct Bytes {
  std::string data;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

class Value {
 public:
  enum class Kind : std::uint8_t { null, boolean, integer, unsigned_integer, real, string, bytes, list, map, array };

  Value() = default;
  Value(std::nullptr_t) {}
  Value(bool boolean) : data_(boolean) {}
  template <std::signed_integral T>
  Value(T integer) : data_(static_cast<std::int64_t>(integer)) {}
  /// An unsigned number that fits int64 is held as int64, so that equal numbers are equal values.
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Value(T integer) {
    if (static_cast<std::uint64_t>(integer) <= static_cast<std::uint64_t>(INT64_MAX))
      data_ = static_cast<std::int64_t>(integer);
    else
      data_ = static_cast<std::uint64_t>(integer);
  }
  Value(double real) : data_(real) {}
  Value(float real) : data_(static_cast<double>(real)) {}
  Value(const char* string) : data_(std::string(string)) {}
  /// A pointer would otherwise be taken for a bool.
  template <class T>
    requires(!std::same_as<std::remove_cv_t<T>, char>)
  Value(T* pointer) = delete;
  Value(std::string_view string) : data_(std::string(string)) {}
  Value(std::string string) : data_(std::move(string)) {}
  Value(Bytes bytes) : data_(std::move(bytes)) {}
  Value(List list) : data_(std::move(list)) {}
  Value(Map map) : data_(std::move(map)) {}
  Value(Array array) : data_(std::move(array)) {}
  /// A map if every element is a pair that begins with a string, else a list.
  Value(std::initializer_list<Value> elements);
  /// A list, whatever its elements look like.
  static Value list(std::initializer_list<Value> elements) { return Value(List(elements)); }

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is_null() const { return kind() == Kind::null; }

  // Each throws ValueError, naming what is there instead, if the value is of another kind.
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] std::uint64_t unsigned_integer() const;
  [[nodiscard]] double real() const;  ///< any number
  [[nodiscard]] const std::string& string() const;
  [[nodiscard]] const std::string& bytes() const;
  [[nodiscard]] const List& list() const;
  [[nodiscard]] List& list();
  [[nodiscard]] const Map& map() const;
  [[nodiscard]] Map& map();
  [[nodiscard]] const Array& array() const;
  /// The elements of an array, in C order.
  template <class T>
  [[nodiscard]] std::span<T> array() const {
    return array().elements<T>();
  }

  /// Throws ValueError, listing the keys that are there, if this one is not.
  [[nodiscard]] const Value& operator[](const Value& key) const;
  /// Adds the key to the map (or to null, which becomes a map) if it is not there.
  [[nodiscard]] Value& operator[](const Value& key);
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value& at(std::size_t index) const;
  /// Elements of a list, entries of a map, elements of an array, bytes of a string.
  [[nodiscard]] std::size_t size() const;

  /// Bit for bit, so that NaN equals itself; an integer never equals a real.
  friend bool operator==(const Value& a, const Value& b);

  /// JSON, with long strings, long lists and arrays abridged: for people.
  [[nodiscard]] std::string text() const;

 private:
  using Data =
      std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Bytes, List, Map, Array>;
  template <class T>
  [[nodiscard]] const T& get(const char* wanted) const;
  Data data_;
};

[[nodiscard]] const char* name_of(Value::Kind kind);

}  // namespace miniray
