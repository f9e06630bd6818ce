// Sleeping on a word in memory that several processes share, and watching processes that are not children.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "base/fd.hpp"

namespace miniray::system {

/// Sleeps while the word has this value, at most timeout_ms. It may also return early, for example after a signal.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, int timeout_ms);
/// Wakes every process that sleeps on the word.
void futex_wake_all(std::atomic<std::uint32_t>& word);

/// Returns a descriptor that is readable once the process has ended; an invalid Fd if there is no such process.
Fd watch_process(pid_t pid);

}  // namespace miniray::system
