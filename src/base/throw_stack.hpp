// Finds where an exception that nobody caught was thrown. Nothing is done when an exception is thrown and caught.
#pragma once

#include <string>

namespace miniray {

/// A catch clause for this type, before all others, never catches anything. It notices each exception that reaches it,
/// while the functions that the exception leaves are still on the stack: the C++ runtime looks for a handler first, and
/// asks each clause whether the exception is of its type. The stack is then taken.
///   try { work(); } catch (const ThrowProbe&) {} catch (const std::exception& error) { ... last_throw_stack() ... }
struct ThrowProbe {
  ThrowProbe() = delete;
  virtual void never_defined();  // without this definition, the compiler makes no type_info, and throw_stack.cpp does
};

/// Returns the readable stack of the latest exception that a ThrowProbe of this thread has noticed, "C++ stack at the
/// throw:" and its lines, and drops it. It is empty if there is none, if MiniRay itself has thrown it without a
/// function of the program among the callers, or if the variable MINIRAY_STACKS is "0".
[[nodiscard]] std::string last_throw_stack();

}  // namespace miniray
