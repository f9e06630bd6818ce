// MINIRAY_TRACE=1 (to standard error) or a path: every message of the process, as one line of JSON each.
#pragma once

#include <time.h>

#include <string>

#include "miniray/message.hpp"

namespace miniray {

enum class Direction : std::uint8_t { sent, received };

/// Whether this process traces; decided once, from the environment. Throws SystemError if the file cannot be opened.
[[nodiscard]] bool tracing();
/// The time of a line: a send is traced when it is done, with the time at which it began.
[[nodiscard]] timespec trace_time();
void trace(Direction direction, const std::string& peer, const Message& message, const timespec& time);

}  // namespace miniray
