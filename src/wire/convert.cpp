#include "miniray/convert.hpp"

#include <cmath>

#include "wire/utf8.hpp"

namespace miniray {
namespace {

constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;

std::string what_is_there(const Value& found) {
  if (found.is_null()) return "is null";
  return std::string("is ") + name_of(found.kind()) + ": " + found.text();
}

// Its callers have a value that outlives the call.
const Value& require_kind(const Value& value, Value::Kind kind, const char* wanted) {
  if (value.kind() != kind) throw Mismatch(wanted, value);
  return value;  // NOLINT(bugprone-return-const-ref-from-parameter)
}

}  // namespace

Mismatch::Mismatch(std::string wanted, const Value& found)
    : Mismatch(std::move(wanted), Place{},
               found.is_null() && found.added_
                   ? "was not there: operator[] of a Value that is not const has added this key to the map; is it "
                     "spelt right? Read with at(), or from a const Value"
                   : what_is_there(found)) {}

Mismatch::Mismatch(std::string wanted, Place place, std::string found)
    : ValueError("expected " + wanted + ", but " + (place.text.empty() ? "the value" : place.text) + " " + found),
      wanted_(std::move(wanted)),
      place_(std::move(place.text)),
      found_(std::move(found)) {}

const std::string& Convert<std::string>::from(const Value& value) {
  return require_kind(value, Value::Kind::string, "string").string();
}
const List& Convert<List>::from(const Value& value) { return require_kind(value, Value::Kind::list, "list").list(); }
const Map& Convert<Map>::from(const Value& value) { return require_kind(value, Value::Kind::map, "map").map(); }
const Array& Convert<Array>::from(const Value& value) {
  return require_kind(value, Value::Kind::array, "array").array();
}
Bytes Convert<Bytes>::from(const Value& value) { return {require_kind(value, Value::Kind::bytes, "bytes").bytes()}; }
bool Convert<bool>::from(const Value& value) { return require_kind(value, Value::Kind::boolean, "bool").boolean(); }
std::vector<std::byte> Convert<std::vector<std::byte>>::from(const Value& value) {
  const std::string& bytes = require_kind(value, Value::Kind::bytes, "bytes").bytes();
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}
Value Convert<std::vector<std::byte>>::to(const std::vector<std::byte>& bytes) {
  return Bytes{std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

namespace detail {

// --- Places ----------------------------------------------------------------------------------------------------------
void throw_inside(const std::string& step) {
  try {
    throw;
  } catch (const Mismatch& mismatch) {
    throw mismatch.inside(step);
  } catch (const ValueError& error) {  // of a Convert that does not use field()
    throw Mismatch::saying("another value", std::string("does not convert: ") + error.what()).inside(step);
  }
}
std::string step_of(std::size_t index) { return "[" + std::to_string(index) + "]"; }
std::string step_of(std::string_view name) { return "[" + Value(name).text() + "]"; }

const Value* find_field(const Value& value, std::string_view name) {
  return require_kind(value, Value::Kind::map, "map").find(name);
}
void throw_missing(std::string wanted, const Value& map, std::string_view name) {
  std::string keys;
  for (const auto& [key, unused] : map.map()) keys += (keys.empty() ? "" : ", ") + key.text();
  throw Mismatch::saying(std::move(wanted), "is missing; the map's keys: " + (keys.empty() ? "none" : keys))
      .inside(step_of(name));
}
void throw_missing(std::string wanted, const Value& list, std::size_t index) {
  throw Mismatch::saying(std::move(wanted), "is missing; the list's length: " + std::to_string(list.size()))
      .inside(step_of(index));
}

// --- Numbers ---------------------------------------------------------------------------------------------------------
void throw_cannot_hold(const char* name, const Value& value) {
  throw Mismatch::saying(name, "is " + value.text() + ", which it cannot hold");
}

std::int64_t integer_from(const Value& value, std::int64_t least, std::int64_t most, const char* name) {
  if (value.kind() == Value::Kind::unsigned_integer) throw_cannot_hold(name, value);
  const std::int64_t integer = require_kind(value, Value::Kind::integer, name).integer();
  if (integer < least || integer > most) throw_cannot_hold(name, value);
  return integer;
}
std::uint64_t unsigned_from(const Value& value, std::uint64_t most, const char* name) {
  if (value.kind() != Value::Kind::unsigned_integer) require_kind(value, Value::Kind::integer, name);
  if (value.kind() == Value::Kind::integer && value.integer() < 0) throw_cannot_hold(name, value);
  const std::uint64_t integer = value.unsigned_integer();
  if (integer > most) throw_cannot_hold(name, value);
  return integer;
}
double real_from(const Value& value, double most, const char* name) {
  if (!value.is_number()) throw Mismatch(name, value);
  const double real = value.real();
  if (std::isfinite(real) && std::abs(real) > most) throw_cannot_hold(name, value);
  return real;
}

// --- Times and paths -------------------------------------------------------------------------------------------------
// A long double has 64 bits of mantissa, so products with 64-bit integers that fit into 64 bits are exact.
long double ticks_from_duration(const Value& value, std::intmax_t num, std::intmax_t den) {
  if (!value.is_number()) throw Mismatch("duration in seconds", value);
  const long double seconds = value.kind() == Value::Kind::integer ? static_cast<long double>(value.integer())
                                                                   : static_cast<long double>(value.real());
  return seconds * static_cast<long double>(den) / static_cast<long double>(num);
}
// Integers, because a product of nanoseconds and units need not fit into the mantissa. Earlier ticks win, as in
// floor().
long double ticks_from_time(const Value& value, std::intmax_t num, std::intmax_t den) {
  if (value.kind() == Value::Kind::real) return std::floor(ticks_from_duration(value, num, den));
  const std::int64_t nanoseconds = require_kind(value, Value::Kind::integer, "time in nanoseconds").integer();
  std::int64_t scale = 0;
  if (__builtin_mul_overflow(num, nanoseconds_per_second, &scale)) throw_cannot_hold("time in nanoseconds", value);
  if (scale < den) {  // ticks shorter than a nanosecond
    const std::int64_t ticks = den / scale;
    return static_cast<long double>(nanoseconds) * static_cast<long double>(ticks);
  }
  const std::int64_t tick = scale / den;
  const std::int64_t whole = nanoseconds / tick;
  return static_cast<long double>(nanoseconds % tick < 0 ? whole - 1 : whole);
}
Value time_value(std::int64_t ticks, std::intmax_t num, std::intmax_t den) {
  std::int64_t scale = 0;
  std::int64_t nanoseconds = 0;
  if (__builtin_mul_overflow(num, nanoseconds_per_second, &scale) ||
      __builtin_mul_overflow(ticks, scale / den, &nanoseconds) || scale % den != 0)
    throw Unsendable("cannot send a time that nanoseconds in 64 bits cannot express");
  return nanoseconds;
}

Value path_value(const std::string& path) {
  if (is_utf8(path)) return path;
  return Bytes{path};
}
const std::string& path_from(const Value& value) {
  if (value.kind() == Value::Kind::bytes) return value.bytes();
  return require_kind(value, Value::Kind::string, "path").string();
}

// --- Arrays ----------------------------------------------------------------------------------------------------------
const Array& array_from(const Value& value, DType dtype) {
  const auto wanted = [&] { return std::string("array of ") + name_of(dtype); };
  if (!value.is_array()) throw Mismatch(wanted(), value);
  if (value.array().dtype() != dtype)
    throw Mismatch::saying(wanted(), std::string("is an array of ") + name_of(value.array().dtype()));
  return value.array();
}

namespace {

template <class T>
List items_of_array(const Array& array) {
  const std::span<const T> elements = array.elements<T>();
  return {elements.begin(), elements.end()};
}

struct NumberFormat {
  int exponent_bits, digits;
  bool is_signed;
};
constexpr NumberFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::int8:
      return {0, 7, true};
    case DType::int16:
      return {0, 15, true};
    case DType::int32:
      return {0, 31, true};
    case DType::int64:
      return {0, 63, true};
    case DType::uint8:
      return {0, 8, false};
    case DType::uint16:
      return {0, 16, false};
    case DType::uint32:
      return {0, 32, false};
    case DType::uint64:
      return {0, 64, false};
    case DType::float32:
      return {8, 24, true};
    case DType::float64:
      return {11, 53, true};
    default:
      return {99, 99, true};  // is not widened
  }
}

}  // namespace

bool widens(DType from, DType to) {
  const NumberFormat narrow = format_of(from);
  const NumberFormat wide = format_of(to);
  return from != to && wide.digits < 99 && narrow.exponent_bits <= wide.exponent_bits && narrow.digits <= wide.digits &&
         (wide.is_signed || !narrow.is_signed);
}

const List& items_of(const Value& value, const std::string& wanted, List& copy) {
  if (value.is_list()) return value.list();
  if (!value.is_array() || value.array().shape().size() != 1) throw Mismatch(wanted, value);
  const Array& array = value.array();
  switch (array.dtype()) {
    case DType::boolean:
      return copy = items_of_array<bool>(array);
    case DType::int8:
      return copy = items_of_array<std::int8_t>(array);
    case DType::int16:
      return copy = items_of_array<std::int16_t>(array);
    case DType::int32:
      return copy = items_of_array<std::int32_t>(array);
    case DType::int64:
      return copy = items_of_array<std::int64_t>(array);
    case DType::uint8:
      return copy = items_of_array<std::uint8_t>(array);
    case DType::uint16:
      return copy = items_of_array<std::uint16_t>(array);
    case DType::uint32:
      return copy = items_of_array<std::uint32_t>(array);
    case DType::uint64:
      return copy = items_of_array<std::uint64_t>(array);
    case DType::float32:
      return copy = items_of_array<float>(array);
    case DType::float64:
      return copy = items_of_array<double>(array);
    default:
      throw Mismatch(wanted, value);
  }
}

}  // namespace detail
}  // namespace miniray
