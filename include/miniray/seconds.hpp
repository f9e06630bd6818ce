// A length of time, wherever a call or an option takes one. A number is a number of seconds; a std::chrono duration is
// taken as what it is:
//
//   worker.recv({.timeout_s = 0.5});
//   worker.recv({.timeout_s = std::chrono::milliseconds(500)});
//   future.get(500ms);
#pragma once

#include <limits>
#include <optional>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

namespace detail {

// These are concepts so that this header does not need <chrono>.
template <class Duration>
concept ChronoDuration = requires(const Duration& duration) {
  static_cast<double>(duration.count());
  Duration::period::num;
  Duration::period::den;
};
template <class TimePoint>
concept ChronoSystemTime = requires(const TimePoint& time) {
  { time.time_since_epoch() } -> ChronoDuration;
  TimePoint::clock::to_time_t(time);  // only the system's clock has it
};

}  // namespace detail

/// A number of seconds. It converts from numbers and from std::chrono durations, and back to double.
class Seconds {
 public:
  constexpr Seconds() = default;
  constexpr Seconds(double seconds) : seconds_(seconds) {}
  template <detail::ChronoDuration Duration>
  constexpr Seconds(const Duration& duration)
      : seconds_(static_cast<double>(duration.count()) * static_cast<double>(Duration::period::num) /
                 static_cast<double>(Duration::period::den)) {}
  constexpr operator double() const { return seconds_; }

 private:
  double seconds_ = 0;
};

/// A whole number of microseconds. It converts from numbers and from std::chrono durations, which are rounded up, and
/// back to int.
class Microseconds {
 public:
  constexpr Microseconds(int microseconds) : microseconds_(microseconds) {}
  template <detail::ChronoDuration Duration>
  constexpr Microseconds(const Duration& duration) {
    const double exact = static_cast<double>(duration.count()) * 1e6 * static_cast<double>(Duration::period::num) /
                         static_cast<double>(Duration::period::den);
    if (exact >= std::numeric_limits<int>::max()) {
      microseconds_ = std::numeric_limits<int>::max();
    } else if (exact > 0) {
      microseconds_ = static_cast<int>(exact);
      if (microseconds_ < exact) ++microseconds_;
    }
  }
  constexpr operator int() const { return microseconds_; }

 private:
  int microseconds_ = 0;
};

/// A time: a number of seconds since 1970, or a std::chrono::system_clock::time_point.
class UnixTime {
 public:
  constexpr UnixTime(double seconds) : seconds_(seconds) {}
  template <detail::ChronoSystemTime TimePoint>
  constexpr UnixTime(const TimePoint& time) : seconds_(Seconds(time.time_since_epoch())) {}
  constexpr operator double() const { return seconds_; }

 private:
  double seconds_;
};

/// How long a call waits at most: a number of seconds, a std::chrono duration, or nothing, which is for ever. 0 and
/// negative times do not wait. NaN throws UsageError.
using Timeout = std::optional<Seconds>;

}  // namespace miniray
