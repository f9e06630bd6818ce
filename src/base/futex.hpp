// Sleeping on a word in memory that several processes share.
#pragma once

#include <atomic>
#include <cstdint>

namespace miniray::system {

/// Sleeps while the word has this value, at most timeout_ms. It may also return early, for example after a signal.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, int timeout_ms);
/// Wakes every process that sleeps on the word.
void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace miniray::system
