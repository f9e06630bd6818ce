// Whether bytes are text. Strings are checked on both sides, so that no peer ever sees a string that is not one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace miniray {

[[nodiscard]] bool is_utf8(std::string_view bytes);
/// What others wrote, which may be anything, as text: bytes that are none become \xNN.
[[nodiscard]] std::string to_utf8(std::string_view bytes);
/// The same on one line, for a log: control characters become \xNN too.
[[nodiscard]] std::string to_utf8_line(std::string_view bytes);

}  // namespace miniray
