// Ties a process to a stream, even while the process runs code that never returns: as long as a StreamGuard lives, the
// end of the stream, or too long a silence on it, kills the whole process group. It does not read from the stream.
#pragma once

namespace miniray {

class StreamGuard {
 public:
  /// Begins to guard the stream. The peer has to send something at least every `silence_ms_max` milliseconds. A process
  /// may have one guard at a time. Throws SystemError.
  StreamGuard(int descriptor, int silence_ms_max);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
};

}  // namespace miniray
