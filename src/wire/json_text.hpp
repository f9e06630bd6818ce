// The two pieces of JSON text that take care: numbers that read back bit for bit, and strings.
#pragma once

#include <string>
#include <string_view>

namespace miniray {

/// The shortest text that reads back as the same finite double, and as a real rather than an integer.
[[nodiscard]] std::string json_number(double value);
void append_json_string(std::string& out, std::string_view text);

}  // namespace miniray
