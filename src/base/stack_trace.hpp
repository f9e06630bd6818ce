// The calls of a thread. A signal handler may take them and write them down; base/stack_text.hpp makes them readable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "miniray/limits.hpp"

namespace miniray {

/// The calls of one thread, innermost first. Repeated calls are folded while they are taken, so that a recursion takes
/// little room; of a stack that is still too long, the innermost and the outermost calls are kept.
class StackTrace {
 public:
  /// Takes the stack of the calling thread. In a signal handler it begins at the interrupted instruction; `interrupted`
  /// is the handler's third argument, and `raised_again` says that a handler of the same signal may have raised it. It
  /// is async-signal-safe once prepare_crash_stacks() has been called.
  void take(const void* interrupted = nullptr, bool raised_again = false) noexcept;
  [[nodiscard]] bool empty() const { return size_ == 0; }
  void clear() { *this = {}; }

  /// Writes one line for each call, with the function, file and line that the program's symbols and debug information
  /// give. It reads the files of the loaded program and libraries, and keeps what it has read in memory that is never
  /// freed. It does not call malloc. Without libbacktrace it writes nothing.
  void write_names(int descriptor) const noexcept;
  /// Writes the addresses, with the names of exported functions. It is async-signal-safe.
  void write_addresses(int descriptor) const noexcept;

 private:
  struct Call {
    std::uintptr_t address = 0;
    std::uint32_t times = 0;         // how often this call follows itself
    std::uint32_t cycle_length = 0;  // this call ends a cycle of this many calls ...
    std::uint32_t cycle_times = 0;   // ... that follows itself this often
  };
  static constexpr std::size_t calls_max = limits::crash_frames_max + limits::crash_outer_frames_max;

  void add(std::uintptr_t address) noexcept;
  bool fold(std::size_t length) noexcept;

  std::array<Call, calls_max> calls_{};
  std::size_t size_ = 0;
  std::size_t left_out_ = 0;  // how many calls there were between the innermost and the outermost ones
};

}  // namespace miniray
