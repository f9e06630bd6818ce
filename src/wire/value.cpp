#include "miniray/value.hpp"

#include <algorithm>
#include <array>
#include <ostream>

#include "miniray/error.hpp"
#include "wire/text_writer.hpp"
#include "wire/value_walk.hpp"

namespace miniray {

static_assert(sizeof(Value) == 16, "a list of numbers should take no more than twice the memory of the numbers");

// --- Making and destroying -------------------------------------------------------------------------------------------
std::string_view detail::name_from(const char* name) {
  if (name == nullptr)
    throw UsageError("a null pointer is no string, and a const char* that is null was given; send nullptr for null");
  return name;
}

Value::Value(const char* string) : Value(detail::name_from(string)) {}
// The kind is set last, so that nothing is destroyed if the allocation throws.
Value::Value(std::string_view string) {
  data_.string = new std::string(string);
  kind_ = Kind::string;
}
Value::Value(std::string string) {
  data_.string = new std::string(std::move(string));
  kind_ = Kind::string;
}
Value::Value(Bytes bytes) {
  data_.string = new std::string(std::move(bytes.data));
  kind_ = Kind::bytes;
}
Value::Value(List list) {
  data_.list = new List(std::move(list));
  kind_ = Kind::list;
}
Value::Value(Map map) {
  data_.map = new Map(std::move(map));
  kind_ = Kind::map;
}
Value::Value(Array array) {
  data_.array = new Array(std::move(array));
  kind_ = Kind::array;
}

Value::Value(std::initializer_list<Element> elements) {
  const bool is_map = elements.size() > 0 && std::ranges::all_of(elements, [](const Element& element) {
                        const Value& value = element.value_;
                        return value.is_list() && value.size() == 2 && value.list()[0].is_string();
                      });
  if (!is_map) {
    *this = list(elements);
    return;
  }
  Map map;
  map.reserve(elements.size());
  for (const Element& element : elements) {
    List& pair = element.value_.list();
    map.emplace_back(std::move(pair[0]), std::move(pair[1]));
  }
  *this = Value(std::move(map));
}

Value Value::list(std::initializer_list<Element> elements) {
  List list;
  list.reserve(elements.size());
  for (const Element& element : elements) list.push_back(std::move(element.value_));
  return list;
}

// The data is still that of the value which is copied. If the allocation throws, this value was never made.
void Value::copy_content() {
  switch (kind_) {
    case Kind::string:
    case Kind::bytes:
      data_.string = new std::string(*data_.string);
      return;
    case Kind::list:
      data_.list = new List(*data_.list);
      return;
    case Kind::map:
      data_.map = new Map(*data_.map);
      return;
    case Kind::array:
      data_.array = new Array(*data_.array);
      return;
    default:
      return;
  }
}

void Value::destroy_content() noexcept {
  switch (kind_) {
    case Kind::string:
    case Kind::bytes:
      delete data_.string;
      return;
    case Kind::list:
      delete data_.list;
      return;
    case Kind::map:
      delete data_.map;
      return;
    case Kind::array:
      delete data_.array;
      return;
    default:
      return;
  }
}

// --- Reading ---------------------------------------------------------------------------------------------------------
const char* name_of(Value::Kind kind) {
  constexpr std::array names{"null",     "a bool", "an integer", "an integer", "a real",
                             "a string", "bytes",  "a list",     "a map",      "an array"};
  return names[static_cast<std::size_t>(kind)];
}

// The value's text is part of the error, so that a reader sees what the message has instead.
void Value::refuse(const char* wanted) const {
  const std::string expected = std::string("expected ") + wanted + ", but ";
  if (is_null() && added_)
    throw ValueError(expected +
                     "the map did not have this key: operator[] of a Value that is not const has added it; is the key "
                     "spelt right? Read with at(), or from a const Value");
  if (is_null()) throw ValueError(expected + "the value is null");
  throw ValueError(expected + "the value is " + name_of(kind()) + ": " + text());
}
void Value::require(Kind kind, const char* wanted) const {
  if (kind_ != kind) refuse(wanted);
}

bool Value::boolean() const {
  require(Kind::boolean, "a bool");
  return data_.boolean;
}
std::int64_t Value::integer() const {
  require(Kind::integer, "an integer that fits into int64");
  return data_.integer;
}
std::uint64_t Value::unsigned_integer() const {
  if (kind_ != Kind::unsigned_integer && (kind_ != Kind::integer || data_.integer < 0))
    refuse("an integer that is not negative");
  return data_.unsigned_integer;
}
double Value::real() const {
  if (kind_ == Kind::integer) return static_cast<double>(data_.integer);
  if (kind_ == Kind::unsigned_integer) return static_cast<double>(data_.unsigned_integer);
  require(Kind::real, "a number");
  return data_.real;
}
const std::string& Value::string() const& {
  require(Kind::string, "a string");
  return *data_.string;
}
std::string Value::string() && {
  require(Kind::string, "a string");
  return std::move(*data_.string);
}
const std::string& Value::bytes() const& {
  require(Kind::bytes, "bytes");
  return *data_.string;
}
std::string Value::bytes() && {
  require(Kind::bytes, "bytes");
  return std::move(*data_.string);
}
const List& Value::list() const& {
  require(Kind::list, "a list");
  return *data_.list;
}
List& Value::list() & {
  require(Kind::list, "a list");
  return *data_.list;
}
TakenOut<List> Value::list() && { return std::move(list()); }
TakenOut<List> Value::list() const&& { return list(); }
const Map& Value::map() const& {
  require(Kind::map, "a map");
  return *data_.map;
}
Map& Value::map() & {
  require(Kind::map, "a map");
  return *data_.map;
}
TakenOut<Map> Value::map() && { return std::move(map()); }
TakenOut<Map> Value::map() const&& { return map(); }
TakenOut<Map> Value::items() && { return std::move(map()); }
TakenOut<Map> Value::items() const&& { return map(); }
const Array& Value::array() const& {
  require(Kind::array, "an array");
  return *data_.array;
}
Array& Value::array() & {
  require(Kind::array, "an array");
  return *data_.array;
}
Array Value::array() && { return std::move(array()); }

std::size_t Value::size() const {
  switch (kind()) {
    case Kind::string:
    case Kind::bytes:
      return data_.string->size();
    case Kind::list:
      return data_.list->size();
    case Kind::map:
      return data_.map->size();
    case Kind::array:
      return data_.array->size();
    default:
      throw ValueError(std::string(name_of(kind())) + " has no size");
  }
}

// --- Keys and elements -----------------------------------------------------------------------------------------------
namespace {

[[noreturn]] void no_such_key(const std::string& key, const Map& map) {
  std::string keys;
  for (const auto& entry : map) keys += (keys.empty() ? "" : ", ") + entry.first.text();
  throw ValueError("the message has no key " + key + "; its keys: " + (keys.empty() ? "none" : keys));
}

}  // namespace

// A linear search: maps of messages are small, and keep their order.
const Value* Value::find(const Value& key) const& {
  for (const auto& [candidate, value] : map()) {
    if (candidate == key) return &value;
  }
  return nullptr;
}
const Value* Value::find_name(std::string_view name) const {
  for (const auto& [candidate, value] : map()) {
    if (candidate.kind_ == Kind::string && *candidate.data_.string == name) return &value;
  }
  return nullptr;
}

const Value& Value::entry(std::string_view name) const {
  if (const Value* found = find_name(name)) return *found;
  no_such_key(Value(name).text(), map());
}
Value& Value::entry_or_new(std::string_view name) {
  if (is_null()) *this = Value(Map());
  if (const Value* found = find_name(name)) return const_cast<Value&>(*found);
  Value& value = map().emplace_back(Value(name), Value()).second;
  value.added_ = true;
  return value;
}

const Value& Value::operator[](const Value& key) const& {
  if (is_list() && key.is_number()) return at(key.unsigned_integer());
  if (const Value* found = find(key)) return *found;
  no_such_key(key.text(), map());
}
Value& Value::operator[](const Value& key) & {
  if (is_list() && key.is_number()) return const_cast<Value&>(at(key.unsigned_integer()));
  if (is_null()) *this = Value(Map());
  if (const Value* found = find(key)) return const_cast<Value&>(*found);
  Value& value = map().emplace_back(key, Value()).second;
  value.added_ = true;
  return value;
}
Value Value::operator[](const Value& key) && { return std::move(const_cast<Value&>(std::as_const(*this)[key])); }

const Value& Value::at(std::size_t index) const& {
  if (index < list().size()) return list()[index];
  throw ValueError("the list has no element " + std::to_string(index) + "; its length is " +
                   std::to_string(list().size()));
}
Value Value::at(std::size_t index) && { return std::move(const_cast<Value&>(std::as_const(*this).at(index))); }

void Value::push_back(Value element) {
  if (is_null()) *this = Value(List());
  list().push_back(std::move(element));
}
bool Value::erase(const Value& key) {
  return std::erase_if(map(), [&](const auto& entry) { return entry.first == key; }) > 0;
}

ValueIterator<Value> Value::begin() & {
  if (is_null()) return {};
  if (is_map()) return ValueIterator<Value>(data_.map->data());
  require(Kind::list, "a list or a map");
  return ValueIterator<Value>(data_.list->data());
}
ValueIterator<Value> Value::end() & {
  if (is_null()) return {};
  if (is_map()) return ValueIterator<Value>(data_.map->data() + data_.map->size());
  require(Kind::list, "a list or a map");
  return ValueIterator<Value>(data_.list->data() + data_.list->size());
}
ValueIterator<const Value> Value::begin() const& {
  if (is_null()) return {};
  if (is_map()) return ValueIterator<const Value>(std::as_const(*data_.map).data());
  require(Kind::list, "a list or a map");
  return ValueIterator<const Value>(std::as_const(*data_.list).data());
}
ValueIterator<const Value> Value::end() const& {
  if (is_null()) return {};
  if (is_map()) return ValueIterator<const Value>(std::as_const(*data_.map).data() + data_.map->size());
  require(Kind::list, "a list or a map");
  return ValueIterator<const Value>(std::as_const(*data_.list).data() + data_.list->size());
}

// --- Text ------------------------------------------------------------------------------------------------------------
std::string Value::text() const {
  TextWriter writer;
  walk(*this, writer);
  return std::move(writer).text();
}
std::ostream& operator<<(std::ostream& stream, const Value& value) { return stream << value.text(); }

}  // namespace miniray
