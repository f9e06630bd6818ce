// Writes and reads values as JSON texts, and writes the two parts that need care: strings, and numbers that must read
// back bit for bit.
#pragma once

#include <string>
#include <string_view>

#include "miniray/value.hpp"

namespace miniray {

/// Returns the value as one line of JSON. The content of arrays and bytes is left out.
[[nodiscard]] std::string write_json(const Value& value);
/// Parses a JSON text. Throws ProtocolError if it is not well formed.
[[nodiscard]] Value read_json_text(std::string_view text);

/// Returns the shortest text that reads back as the same finite double, and not as an integer.
[[nodiscard]] std::string json_number(double value);
/// Appends the text in quotation marks, with escapes.
void append_json_string(std::string& out, std::string_view text);

}  // namespace miniray
