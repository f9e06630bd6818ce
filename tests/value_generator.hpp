// Random messages from a seed, for comparing both ends of a channel.
#pragma once

#include <bit>
#include <cstring>
#include <random>

#include "miniray/miniray.hpp"

namespace miniray {

class ValueGenerator {
 public:
  explicit ValueGenerator(unsigned seed) : random_(seed) {}

  Value message() { return any(3); }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  Value number() {
    switch (below(4)) {
      case 0:
        return Value(static_cast<std::int64_t>(random_()));
      case 1:
        return Value(random_());
      case 2:
        return Value(static_cast<std::int64_t>(below(300)) - 150);
      default:
        return Value(std::bit_cast<double>(random_()));  // NaN payloads and infinities included
    }
  }

  std::string text() {
    static constexpr const char* pieces[] = {"a", "$", "\"", "\\", "\n", "é", "漢", "😀", "\x01", "key"};
    std::string text;
    for (std::uint64_t i = below(8); i > 0; --i) text += pieces[below(std::size(pieces))];
    return text;
  }

  std::string raw(std::uint64_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  Array array() {
    const auto dtype = static_cast<DType>(below(dtype_count));
    Shape shape(below(4));
    for (std::uint64_t& extent : shape) extent = below(5);
    const std::string bytes = raw(Array::element_count(shape) * item_bytes(dtype));
    Buffer buffer = Buffer::allocate(bytes.size());
    std::memcpy(buffer.data, bytes.data(), bytes.size());
    return {dtype, shape, buffer};
  }

  Value packed_list() {
    List list;
    const bool real = below(2) == 0;
    for (std::uint64_t i = below(100); i > 0; --i)
      list.push_back(real ? Value(std::bit_cast<double>(random_())) : Value(static_cast<std::int64_t>(random_())));
    return Value(list);
  }

  Value any(int depth) {
    switch (below(depth > 0 ? 10 : 6)) {
      case 0:
        return {};
      case 1:
        return Value(below(2) == 0);
      case 2:
        return number();
      case 3:
        return Value(text());
      case 4:
        return Value(Bytes{raw(below(20) == 0 ? 100'000 : below(40))});
      case 5:
        return Value(array());
      case 6:
        return packed_list();
      case 7: {
        List list;
        for (std::uint64_t i = below(6); i > 0; --i) list.push_back(any(depth - 1));
        return Value(list);
      }
      default: {
        Map map;
        for (std::uint64_t i = below(6); i > 0; --i)
          map.emplace_back(below(3) == 0 ? number() : Value(text() + std::to_string(i)), any(depth - 1));
        return Value(map);
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace miniray
