// A length of time, wherever a call or an option takes one. A number is a number of seconds; a std::chrono duration is
// taken as what it is:
//
//   worker.recv({.timeout_s = 0.5});
//   worker.recv({.timeout_s = std::chrono::milliseconds(500)});
//   future.get(500ms);
#pragma once

#include <optional>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

/// A number of seconds. It converts from numbers and from std::chrono durations, and back to double.
class Seconds {
 public:
  constexpr Seconds() = default;
  constexpr Seconds(double seconds) : seconds_(seconds) {}
  /// Takes any std::chrono::duration. It is a template so that this header does not need <chrono>.
  template <class Duration>
    requires requires(const Duration& duration) {
      static_cast<double>(duration.count());
      Duration::period::num;
      Duration::period::den;
    }
  constexpr Seconds(const Duration& duration)
      : seconds_(static_cast<double>(duration.count()) * static_cast<double>(Duration::period::num) /
                 static_cast<double>(Duration::period::den)) {}
  constexpr operator double() const { return seconds_; }

 private:
  double seconds_ = 0;
};

/// How long a call waits at most: a number of seconds, a std::chrono duration, or nothing, which is for ever. 0 and
/// negative times do not wait. NaN throws UsageError.
using Timeout = std::optional<Seconds>;

}  // namespace miniray
