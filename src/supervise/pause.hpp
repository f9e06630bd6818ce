// A pause that an interrupt can end.
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
