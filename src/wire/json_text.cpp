#include "wire/json_text.hpp"

#include <array>
#include <charconv>

#include "base/check.hpp"
#include "miniray/message.hpp"

namespace miniray {

std::string write_json(const Value& value) { return encode(value, Codec::json).body; }

Value read_json_text(std::string_view text) {
  Message message;
  message.codec = Codec::json;
  message.body = text;
  return decode(message);
}

std::string json_number(double value) {
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  MINIRAY_CHECK(error == std::errc(), value);
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // otherwise it would read back as an integer
  return text;
}

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (byte < 0x20)
      ((out += "\\u00") += hex[byte >> 4U]) += hex[byte & 0xFU];
    else
      out += c;
  }
  out += '"';
}

}  // namespace miniray
