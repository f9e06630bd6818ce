// Where MiniRay's own messages go: warnings, refused connections, failures that no call has thrown.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

enum class LogLevel : std::uint8_t {
  info,     ///< what happens, such as a group of workers that starts again
  warning,  ///< what may be wrong, such as a fork of a process with threads or a refused connection
  error,    ///< what has failed without a call that could throw it, such as the death of a worker that nobody noticed
};

/// Gets the level and the text of a message. The text has no "miniray: " before it and no line break after it, but may
/// have several lines; it is valid during the call only.
using LogFunction = std::function<void(LogLevel level, std::string_view text)>;

/// From now on, MiniRay's messages go to this function instead of standard error. An empty function restores standard
/// error, where each message is a line "miniray: text". Any thread may call it, at any time.
///
/// The function is called by the thread that has something to say, so it must be safe to call from several threads at
/// once; it must not call MiniRay. An exception that it throws is swallowed, and the message is printed. Forked workers
/// inherit the function. MiniRay keeps every function that it was given until the program ends, because another thread
/// may be calling it.
///
/// What a program asked to see is no message of this kind: the progress of a cluster's start, the output of its workers
/// and MINIRAY_TRACE. A bug that MiniRay finds in itself is always printed.
void set_log(LogFunction function);

}  // namespace miniray
