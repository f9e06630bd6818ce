// What a sanitizer changes so much that a test cannot be run under it: TEST_CASE("..." * doctest::skip(under_tsan)).
#pragma once

namespace miniray {

#ifdef __SANITIZE_THREAD__
inline constexpr bool under_tsan = true;  // it puts handlers of signals off, and knows nothing of libgomp's locks
#else
inline constexpr bool under_tsan = false;
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;  // it ends a process that can get no memory, and needs descriptors of its own
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace miniray
