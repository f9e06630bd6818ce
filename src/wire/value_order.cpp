// Equality, order and hash of values. All three agree: what compares equal has equal hashes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <cstring>
#include <functional>

#include "miniray/value.hpp"

namespace miniray {
namespace {

using Entry = Map::value_type;
using Order = std::strong_ordering;

// Numbers of all three kinds have one place in the order of kinds.
int rank(Value::Kind kind) {
  using Kind = Value::Kind;
  return static_cast<int>(kind == Kind::unsigned_integer || kind == Kind::real ? Kind::integer : kind);
}

// A long double holds every double and every 64-bit integer exactly.
long double number_of(const Value& value) {
  if (value.kind() == Value::Kind::integer) return static_cast<long double>(value.integer());
  if (value.kind() == Value::Kind::unsigned_integer) return static_cast<long double>(value.unsigned_integer());
  return static_cast<long double>(value.real());
}

Order order_numbers(const Value& a, const Value& b) {
  const long double x = number_of(a);
  const long double y = number_of(b);
  if (x < y) return Order::less;
  if (x > y) return Order::greater;
  if (a.kind() == Value::Kind::real && b.kind() == Value::Kind::real) return std::strong_order(a.real(), b.real());
  if (std::isnan(x)) return std::signbit(x) ? Order::less : Order::greater;  // beyond all numbers
  if (std::isnan(y)) return std::signbit(y) ? Order::greater : Order::less;
  return a.kind() <=> b.kind();
}

// Makes the order of entries irrelevant. Keys may repeat in a map that was not well made; the values decide then.
std::vector<const Entry*> sorted(const Map& map) {
  std::vector<const Entry*> entries;
  entries.reserve(map.size());
  for (const Entry& entry : map) entries.push_back(&entry);
  std::ranges::sort(entries, [](const Entry* a, const Entry* b) { return *a < *b; });
  return entries;
}

bool equal_maps(const Map& a, const Map& b) {
  if (a.size() != b.size()) return false;
  if (std::ranges::equal(a, b)) return true;  // mostly both sides have the same order
  return std::ranges::equal(sorted(a), sorted(b), [](const Entry* x, const Entry* y) { return *x == *y; });
}

Order order_maps(const Map& a, const Map& b) {
  const std::vector<const Entry*> x = sorted(a);
  const std::vector<const Entry*> y = sorted(b);
  return std::lexicographical_compare_three_way(x.begin(), x.end(), y.begin(), y.end(),
                                                [](const Entry* one, const Entry* other) { return *one <=> *other; });
}

Order order_arrays(const Array& a, const Array& b) {
  if (a.dtype() != b.dtype()) return a.dtype() <=> b.dtype();
  if (const Order order = a.shape() <=> b.shape(); order != Order::equal) return order;
  const std::size_t size = a.buffer().size;
  return (size == 0 ? 0 : std::memcmp(a.buffer().data, b.buffer().data, size)) <=> 0;
}

std::size_t hash_bytes(const void* data, std::size_t size) {
  return std::hash<std::string_view>{}({static_cast<const char*>(data), size});
}
std::size_t mixed(std::size_t seed, std::size_t hash) {
  constexpr std::size_t odd = 0x9e3779b97f4a7c15U;  // 2^64 divided by the golden ratio: spreads small numbers
  return (std::rotl(seed, 5) ^ hash) * odd;
}

}  // namespace

bool operator==(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::null:
      return true;
    case Value::Kind::boolean:
      return a.boolean() == b.boolean();
    case Value::Kind::integer:
    case Value::Kind::unsigned_integer:
      return a.data_.unsigned_integer == b.data_.unsigned_integer;
    case Value::Kind::real:  // as numbers, NaN would differ from itself and 0.0 would equal -0.0
      return std::bit_cast<std::uint64_t>(a.data_.real) == std::bit_cast<std::uint64_t>(b.data_.real);
    case Value::Kind::string:
    case Value::Kind::bytes:
      return *a.data_.string == *b.data_.string;
    case Value::Kind::list:
      return a.list() == b.list();
    case Value::Kind::map:
      return equal_maps(a.map(), b.map());
    case Value::Kind::array:
      return a.array() == b.array();
  }
  return false;
}

std::strong_ordering operator<=>(const Value& a, const Value& b) {
  if (rank(a.kind()) != rank(b.kind())) return rank(a.kind()) <=> rank(b.kind());
  switch (a.kind()) {
    case Value::Kind::null:
      return Order::equal;
    case Value::Kind::boolean:
      return a.boolean() <=> b.boolean();
    case Value::Kind::integer:
    case Value::Kind::unsigned_integer:
    case Value::Kind::real:
      return order_numbers(a, b);
    case Value::Kind::string:
    case Value::Kind::bytes:
      return *a.data_.string <=> *b.data_.string;
    case Value::Kind::list:
      return a.list() <=> b.list();
    case Value::Kind::map:
      return order_maps(a.map(), b.map());
    case Value::Kind::array:
      return order_arrays(a.array(), b.array());
  }
  return Order::equal;
}

std::size_t Value::hash() const {
  const auto seed = static_cast<std::size_t>(kind_);
  switch (kind_) {
    case Kind::null:
      return mixed(seed, 0);
    case Kind::boolean:
      return mixed(seed, data_.boolean ? 1 : 0);
    case Kind::integer:
    case Kind::unsigned_integer:
    case Kind::real:
      return mixed(seed, std::bit_cast<std::size_t>(data_));
    case Kind::string:
    case Kind::bytes:
      return mixed(seed, hash_bytes(data_.string->data(), data_.string->size()));
    case Kind::list: {
      std::size_t result = seed;
      for (const Value& element : *data_.list) result = mixed(result, element.hash());
      return result;
    }
    case Kind::map: {
      std::size_t sum = 0;  // a sum, because the order of the entries does not matter
      for (const auto& [key, value] : *data_.map) sum += mixed(key.hash(), value.hash());
      return mixed(seed, sum);
    }
    case Kind::array:
      return mixed(seed, hash_bytes(data_.array->buffer().data, data_.array->buffer().size));
  }
  return 0;
}

}  // namespace miniray
