// Says something to the user of the program, through the function of set_log().
#pragma once

#include <string_view>

#include "miniray/log.hpp"

namespace miniray {

/// Gives a message to the program's function, or prints it: "miniray: text". Any thread may call it, also in a forked
/// child, since it takes no lock. Printing never waits: if standard error is full, the message is dropped, and the next
/// one that is printed says how many were dropped.
void log(LogLevel level, std::string_view text) noexcept;

/// The same, for a part of MiniRay that prints its lines in another form. `printed` replaces "miniray: text" on
/// standard error.
void log(LogLevel level, std::string_view text, std::string_view printed) noexcept;

}  // namespace miniray
