// Text from a peer as people may see it: on a terminal, control characters could move the cursor, change the title or
// press keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace miniray {

/// Whether sequences that set colours (ESC [ digits and semicolons m) are kept or escaped.
enum class Colours : std::uint8_t { keep, escape };

/// Returns the text with escapes such as \x1b in place of control characters (C0 and C1, in UTF-8 too) other than tab
/// and newline, and in place of bytes that are not UTF-8. A carriage return at the end of a line is left out.
[[nodiscard]] std::string shown(std::string_view text, Colours colours);
/// Returns the start of a text as one line, for an error that quotes it: escaped, and with "..." if it is cut.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace miniray
