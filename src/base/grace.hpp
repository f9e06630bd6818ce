// Graces: how long a process that was told to end may take before it is killed.
#pragma once

#include <cstdlib>

namespace miniray {

/// Returns `usual_ms`, or MINIRAY_TEST_GRACE_MS if that is set. A test which checks that nothing waits for a grace sets
/// the variable to more than the test's own time-out. If something does wait, the test then fails whatever the speed of
/// the machine.
inline int grace_ms(int usual_ms) {
  const char* setting = std::getenv("MINIRAY_TEST_GRACE_MS");
  return setting != nullptr ? std::atoi(setting) : usual_ms;
}

}  // namespace miniray
