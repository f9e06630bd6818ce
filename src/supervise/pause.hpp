// Waits for some time. on_interrupt, if it is set, is called now and then, and may throw to end the wait.
#pragma once

#include <functional>

#include "base/clock.hpp"
#include "base/system.hpp"
#include "miniray/limits.hpp"

namespace miniray {

inline void pause(double seconds, const std::function<void()>& on_interrupt) {
  const Deadline deadline = Deadline::in_seconds(seconds);
  while (!deadline.passed()) {
    (void)system::poll_many({}, deadline.poll_ms(limits::wait_slice_ms));
    if (on_interrupt) on_interrupt();
  }
}

}  // namespace miniray
