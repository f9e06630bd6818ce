// Makes the stacks that a process has written (base/stack_trace.hpp, base/crash.hpp) readable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace miniray {

/// What stands around a stack in a crash file. A stack begins with its title, "C++ stack at SIGSEGV:"; then come
/// addresses, the line `names_begin`, names and the line `stack_ends`. What is cut off or missing is made up for by the
/// addresses.
inline constexpr std::string_view stack_title = "C++ stack";
inline constexpr std::string_view names_begin = "names of the C++ stack:";
inline constexpr std::string_view stack_ends = "end of the C++ stack";

/// Which of MiniRay's functions a readable stack has.
enum class OwnCalls : std::uint8_t {
  keep_all,
  keep_alone,  ///< only if the stack has no others
  drop_all,    ///< a stack that has no others is left with its title alone
};

/// Returns the text with its stacks made readable: one line for each function, "name(arguments) at file:line", without
/// MiniRay's own functions and without what called the work function. Calls that repeat are followed by "... 60 times".
/// All other lines stay as they are. The stack of a failed check of MiniRay keeps MiniRay's functions.
[[nodiscard]] std::string readable_stacks(const std::string& text, OwnCalls own = OwnCalls::keep_alone);

/// Returns whether the text has a stack that its process is still writing.
[[nodiscard]] bool has_unfinished_stack(std::string_view text);

/// Returns the name as in C++ source if it is a mangled one, and the name itself if it is not.
[[nodiscard]] std::string demangle(const std::string& name);

}  // namespace miniray
