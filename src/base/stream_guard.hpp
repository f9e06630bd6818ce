// For a process that runs code which may take for ever, while its stream is the only word of those it works for: as
// long as this lives, the end of the stream, or too long a silence on it, kills the whole process group. Nothing is
// read.
#pragma once

namespace miniray {

class StreamGuard {
 public:
  /// One at a time. Whoever is at the other end has to say something before `silence_ms_max` is over, again and again.
  StreamGuard(int descriptor, int silence_ms_max);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
};

}  // namespace miniray
