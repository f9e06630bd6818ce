// Writes every message of the process as one line of JSON, if MINIRAY_TRACE is 1 (to standard error) or a path.
#pragma once

#include <time.h>

#include <string>

#include "miniray/message.hpp"

namespace miniray {

enum class Direction : std::uint8_t { sent, received };

/// Returns whether this process traces. The first call reads the environment and opens the file; it throws SystemError
/// if the file cannot be opened.
[[nodiscard]] bool tracing();
/// Returns the current time, for trace(). A send is traced when it is done, with the time at which it began.
[[nodiscard]] timespec trace_time();
void trace(Direction direction, const std::string& peer, const Message& message, const timespec& time);

}  // namespace miniray
