// Deadlines on the monotonic clock, which does not change when somebody sets the time of day.
#pragma once

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "miniray/error.hpp"

namespace miniray {

inline std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

/// A point in time until which a caller waits. A deadline that is never() does not pass.
class Deadline {
 public:
  static Deadline never() { return {}; }
  static Deadline in_ms(std::int64_t ms) { return Deadline(now_ns() + ms * 1'000'000); }
  static Deadline in_seconds(std::optional<double> seconds) {
    if (!seconds) return never();
    if (std::isnan(*seconds)) throw UsageError("the time-out is NaN; give a number of seconds");
    constexpr double century_s = 3.2e9;  // no wait is longer, and the clock does not overflow
    return Deadline(now_ns() + static_cast<std::int64_t>(std::clamp(*seconds, 0.0, century_s) * 1e9));
  }

  [[nodiscard]] bool is_never() const { return at_ns_ == never_ns; }
  [[nodiscard]] bool passed() const { return !is_never() && now_ns() >= at_ns_; }

  /// Returns 0 if the deadline has passed, and nothing if it is never().
  [[nodiscard]] std::optional<double> seconds_left() const {
    if (is_never()) return std::nullopt;
    return std::max(0.0, static_cast<double>(at_ns_ - now_ns()) / 1e9);
  }

  /// Returns the time left in milliseconds for poll(2), rounded up, at most `slice_ms`.
  [[nodiscard]] int poll_ms(int slice_ms) const {
    if (is_never()) return slice_ms;
    const std::int64_t left_ms = (at_ns_ - now_ns() + 999'999) / 1'000'000;
    return static_cast<int>(std::clamp<std::int64_t>(left_ms, 0, slice_ms));
  }

 private:
  static constexpr std::int64_t never_ns = INT64_MAX;
  Deadline() = default;
  explicit Deadline(std::int64_t at_ns) : at_ns_(at_ns) {}
  std::int64_t at_ns_ = never_ns;
};

}  // namespace miniray
