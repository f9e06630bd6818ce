// MINIRAY_TRACE=1 (to standard error) or a path: every message of the process, as one line of JSON each.
#pragma once

#include <string>

#include "miniray/message.hpp"

namespace miniray {

enum class Direction : std::uint8_t { sent, received };

/// Whether this process traces; decided once, from the environment. Throws SystemError if the file cannot be opened.
[[nodiscard]] bool tracing();
void trace(Direction direction, const std::string& peer, const Message& message);

}  // namespace miniray
