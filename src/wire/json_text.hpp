// JSON texts: of whole values, and of the two pieces that take care, numbers that read back bit for bit and strings.
#pragma once

#include <string>
#include <string_view>

#include "miniray/value.hpp"

namespace miniray {

/// The value as one line of JSON. Arrays and bytes are named there without their contents.
[[nodiscard]] std::string write_json(const Value& value);
/// Throws ProtocolError if the text is not well formed.
[[nodiscard]] Value read_json_text(std::string_view text);

/// The shortest text that reads back as the same finite double, and as a real rather than an integer.
[[nodiscard]] std::string json_number(double value);
void append_json_string(std::string& out, std::string_view text);

}  // namespace miniray
