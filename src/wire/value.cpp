#include "miniray/value.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "miniray/error.hpp"
#include "wire/text_writer.hpp"
#include "wire/value_walk.hpp"

namespace miniray {

Value::Value(std::initializer_list<Value> elements) {
  const bool is_map =
      elements.size() > 0 && std::ranges::all_of(elements, [](const Value& element) {
        return element.kind() == Kind::list && element.list().size() == 2 && element.list()[0].kind() == Kind::string;
      });
  if (!is_map) {
    data_ = List(elements);
    return;
  }
  Map map;
  map.reserve(elements.size());
  for (const Value& pair : elements) map.emplace_back(pair.list()[0], pair.list()[1]);
  data_ = std::move(map);
}

const char* name_of(Value::Kind kind) {
  constexpr std::array names{"null",     "a bool", "an integer", "an integer", "a real",
                             "a string", "bytes",  "a list",     "a map",      "an array"};
  return names[static_cast<std::size_t>(kind)];
}

// The value's text is part of the error, so that a reader sees what the message has instead.
template <class T>
const T& Value::get(const char* wanted) const {
  if (const T* data = std::get_if<T>(&data_)) return *data;
  throw ValueError(std::string("expected ") + wanted + ", but the value is " + name_of(kind()) + ": " + text());
}

bool Value::boolean() const { return get<bool>("a bool"); }
std::int64_t Value::integer() const { return get<std::int64_t>("an integer that fits into int64"); }
std::uint64_t Value::unsigned_integer() const {
  if (const auto* small = std::get_if<std::int64_t>(&data_); small != nullptr && *small >= 0)
    return static_cast<std::uint64_t>(*small);
  return get<std::uint64_t>("an integer that is not negative");
}
double Value::real() const {
  if (const auto* integer = std::get_if<std::int64_t>(&data_)) return static_cast<double>(*integer);
  if (const auto* integer = std::get_if<std::uint64_t>(&data_)) return static_cast<double>(*integer);
  return get<double>("a number");
}
const std::string& Value::string() const { return get<std::string>("a string"); }
const std::string& Value::bytes() const { return get<Bytes>("bytes").data; }
const List& Value::list() const { return get<List>("a list"); }
List& Value::list() { return const_cast<List&>(get<List>("a list")); }
const Map& Value::map() const { return get<Map>("a map"); }
Map& Value::map() { return const_cast<Map&>(get<Map>("a map")); }
const Array& Value::array() const { return get<Array>("an array"); }

// A linear search: maps of messages are small, and keep their order.
const Value* Value::find(const Value& key) const {
  for (const auto& [candidate, value] : map()) {
    if (candidate == key) return &value;
  }
  return nullptr;
}

const Value& Value::operator[](const Value& key) const {
  if (const Value* found = find(key)) return *found;
  std::string keys;
  for (const auto& entry : map()) keys += (keys.empty() ? "" : ", ") + entry.first.text();
  throw ValueError("the message has no key " + key.text() + "; its keys: " + (keys.empty() ? "none" : keys));
}

Value& Value::operator[](const Value& key) {
  if (is_null()) data_ = Map();
  if (const Value* found = find(key)) return const_cast<Value&>(*found);
  return map().emplace_back(key, Value()).second;
}

const Value& Value::at(std::size_t index) const {
  if (index < list().size()) return list()[index];
  throw ValueError("the list has no element " + std::to_string(index) + "; its length is " +
                   std::to_string(list().size()));
}

std::size_t Value::size() const {
  switch (kind()) {
    case Kind::string:
      return string().size();
    case Kind::bytes:
      return bytes().size();
    case Kind::list:
      return list().size();
    case Kind::map:
      return map().size();
    case Kind::array:
      return array().size();
    default:
      throw ValueError(std::string(name_of(kind())) + " has no size");
  }
}

// Only reals need care: std::variant would compare them as numbers, where NaN differs from itself and 0.0 equals -0.0.
bool operator==(const Value& a, const Value& b) {
  const auto* real_a = std::get_if<double>(&a.data_);
  const auto* real_b = std::get_if<double>(&b.data_);
  if (real_a != nullptr && real_b != nullptr)
    return std::bit_cast<std::uint64_t>(*real_a) == std::bit_cast<std::uint64_t>(*real_b);
  return a.data_ == b.data_;
}

std::string Value::text() const {
  TextWriter writer;
  walk(*this, writer);
  return std::move(writer).text();
}

}  // namespace miniray
