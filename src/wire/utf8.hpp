// Checks whether bytes are UTF-8. Sender and receiver both check strings, so that no program gets a malformed one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace miniray {

[[nodiscard]] bool is_utf8(std::string_view bytes);
/// Returns any bytes as text: bytes that are not UTF-8 become \xNN.
[[nodiscard]] std::string to_utf8(std::string_view bytes);
/// Returns any bytes as one line of text for a log: control characters become \xNN too.
[[nodiscard]] std::string to_utf8_line(std::string_view bytes);

}  // namespace miniray
