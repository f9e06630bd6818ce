// The content of a message, as a C++ program sees it. A Value is written and read like JSON:
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
#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

class Value;
using List = std::vector<Value>;
/// Entries keep the order in which they were added. A key is null, a bool, a number, a string or bytes.
using Map = std::vector<std::pair<Value, Value>>;
/// Raw bytes. Python receives them as bytes, and a std::string as str.
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
  /// An unsigned number that fits into int64 is stored as int64, so that equal numbers are equal values.
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
  /// Deleted, because a pointer would otherwise convert to bool.
  template <class T>
    requires(!std::same_as<std::remove_cv_t<T>, char>)
  Value(T* pointer) = delete;
  Value(std::string_view string) : data_(std::string(string)) {}
  Value(std::string string) : data_(std::move(string)) {}
  Value(Bytes bytes) : data_(std::move(bytes)) {}
  Value(List list) : data_(std::move(list)) {}
  Value(Map map) : data_(std::move(map)) {}
  Value(Array array) : data_(std::move(array)) {}
  /// Makes a map if every element is a pair whose first part is a string, else a list.
  Value(std::initializer_list<Value> elements);
  /// Makes a list, even if every element looks like an entry of a map.
  static Value list(std::initializer_list<Value> elements) { return Value(List(elements)); }

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is_null() const { return kind() == Kind::null; }

  // Each of these throws ValueError if the value is of another kind; the text names that kind. A reference is valid for
  // as long as the value lives and is not changed.
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] std::uint64_t unsigned_integer() const;
  [[nodiscard]] double real() const;  ///< takes integers too
  [[nodiscard]] const std::string& string() const;
  [[nodiscard]] const std::string& bytes() const;
  [[nodiscard]] const List& list() const;
  [[nodiscard]] List& list();
  [[nodiscard]] const Map& map() const;
  [[nodiscard]] Map& map();
  [[nodiscard]] const Array& array() const;
  /// Returns the elements of an array in C order, without copying them. Throws ValueError if they are not of type T.
  template <class T>
  [[nodiscard]] std::span<T> array() const {
    return array().elements<T>();
  }

  /// Returns the value of a key. Throws ValueError, which lists the existing keys, if the map does not have the key.
  [[nodiscard]] const Value& operator[](const Value& key) const;
  /// Returns the value of a key. Adds the key with a null value if the map does not have it; null becomes a map first.
  [[nodiscard]] Value& operator[](const Value& key);
  /// Returns the value of a key, or nullptr if the map does not have the key.
  [[nodiscard]] const Value* find(const Value& key) const;
  /// Returns an element of a list. Throws ValueError if the list is shorter.
  [[nodiscard]] const Value& at(std::size_t index) const;
  /// Returns how many elements a list or an array has, how many entries a map, how many bytes a string or bytes.
  [[nodiscard]] std::size_t size() const;

  /// Compares bit for bit, so NaN equals itself. An integer never equals a real.
  friend bool operator==(const Value& a, const Value& b);

  /// Returns JSON for people to read: long strings, long lists and arrays are abridged.
  [[nodiscard]] std::string text() const;

 private:
  using Data =
      std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Bytes, List, Map, Array>;
  template <class T>
  [[nodiscard]] const T& get(const char* wanted) const;
  Data data_;
};

/// Returns the kind with its article: "a string", "an array".
[[nodiscard]] const char* name_of(Value::Kind kind);

}  // namespace miniray
