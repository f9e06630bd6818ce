// How long what is to end may take before it is killed.
#pragma once

#include <cstdlib>

namespace miniray {

/// The grace that users have, `usual_ms`. MINIRAY_TEST_GRACE_MS replaces it: a test that must not wait for a grace sets
/// one that is longer than the test may last, so no clock decides it.
inline int grace_ms(int usual_ms) {
  const char* setting = std::getenv("MINIRAY_TEST_GRACE_MS");
  return setting != nullptr ? std::atoi(setting) : usual_ms;
}

}  // namespace miniray
