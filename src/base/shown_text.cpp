#include "base/shown_text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "miniray/limits.hpp"

namespace miniray {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

bool continues(unsigned byte) { return (byte & 0xC0U) == 0x80U; }

// Returns the length of the character at the front that a terminal may get as it is; 0 if it has to be escaped.
std::size_t harmless_length(std::string_view text) {
  const unsigned first = byte_at(text, 0), second = byte_at(text, 1);
  if (first < 0x80) return (first >= 0x20 && first != 0x7F) || first == '\t' || first == '\n' ? 1 : 0;
  if (first < 0xC2 || first > 0xF4 || !continues(second)) return 0;
  if (first < 0xE0) return first == 0xC2 && second < 0xA0 ? 0 : 2;  // U+0080 to U+009F are C1
  if (!continues(byte_at(text, 2))) return 0;
  if (first < 0xF0) return (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ? 0 : 3;
  if (!continues(byte_at(text, 3))) return 0;
  return (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F) ? 0 : 4;
}

// Returns the length of the sequence for colours at the front; 0 if there is none.
std::size_t colour_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

}  // namespace

std::string shown(std::string_view text, Colours colours) {
  std::string made;
  made.reserve(text.size());
  while (!text.empty()) {
    // Nearly all text is plain.
    const auto plain =
        std::ranges::find_if(text, [](unsigned char c) { return c != '\n' && c != '\t' && (c < 0x20 || c > 0x7E); });
    auto length = static_cast<std::size_t>(plain - text.begin());
    if (length == 0) length = harmless_length(text);
    if (length == 0 && colours == Colours::keep) length = colour_length(text);
    if (text[0] == '\r' && (text.size() == 1 || text[1] == '\n')) {
      length = 1;  // a line that ends as those of some terminals and systems do
    } else if (length > 0) {
      made += text.substr(0, length);
    } else {
      // U+0080 to U+009F have two bytes, of which the second one is the character's number.
      const bool c1 = byte_at(text, 0) == 0xC2 && continues(byte_at(text, 1));
      std::array<char, 8> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", byte_at(text, c1 ? 1 : 0));
      made += hex.data();
      length = c1 ? 2 : 1;
    }
    text.remove_prefix(length);
  }
  return made;
}

std::string in_quotes(std::string_view text) {
  std::string line = shown(text.substr(0, limits::quoted_bytes_max), Colours::escape);
  for (std::size_t at = line.find('\n'); at != std::string::npos; at = line.find('\n', at)) line.replace(at, 1, "\\n");
  return "\"" + line + (text.size() > limits::quoted_bytes_max ? "...\"" : "\"");
}

}  // namespace miniray
