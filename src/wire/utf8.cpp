#include "wire/utf8.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace miniray {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0U) == 0x80U; }

// Returns the length of the well-formed sequence at `at`, or 0. The ranges exclude overlong forms and surrogates.
std::size_t sequence_length(const unsigned char* at, std::size_t left) {
  const unsigned char first = at[0];
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return left >= 2 && is_continuation(at[1]) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (left < 3 || !is_continuation(at[1]) || !is_continuation(at[2])) return 0;
    if (first == 0xE0 && at[1] < 0xA0) return 0;
    if (first == 0xED && at[1] > 0x9F) return 0;
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (left < 4 || !is_continuation(at[1]) || !is_continuation(at[2]) || !is_continuation(at[3])) return 0;
    if (first == 0xF0 && at[1] < 0x90) return 0;
    if (first == 0xF4 && at[1] > 0x8F) return 0;
    return 4;
  }
  return 0;
}

std::string escape(std::string_view bytes, bool control_too) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
    std::size_t length = sequence_length(at, bytes.size());
    if (length == 1 && control_too && (*at < 0x20 || *at == 0x7F)) length = 0;
    std::array<char, 8> hex{};
    if (length == 0) std::snprintf(hex.data(), hex.size(), "\\x%02x", unsigned{*at});
    text += length == 0 ? std::string_view(hex.data()) : bytes.substr(0, length);
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return text;
}

}  // namespace

std::string to_utf8(std::string_view bytes) { return is_utf8(bytes) ? std::string(bytes) : escape(bytes, false); }

std::string to_utf8_line(std::string_view bytes) { return escape(bytes, true); }

bool is_utf8(std::string_view bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t left = bytes.size();
  while (left > 0) {
    // Most text is ASCII, which is checked eight bytes at a time.
    std::uint64_t eight = 0;
    const std::size_t some = std::min(left, sizeof(eight));
    std::memcpy(&eight, at, some);
    if ((eight & 0x8080808080808080U) == 0) {
      at += some;
      left -= some;
      continue;
    }
    const std::size_t length = sequence_length(at, left);
    if (length == 0) return false;
    at += length;
    left -= length;
  }
  return true;
}

}  // namespace miniray
