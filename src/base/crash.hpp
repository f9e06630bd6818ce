// Finds out why a process crashed: a signal handler writes the stack to a descriptor, and the kernel counts how often
// its out-of-memory killer has killed a process. base/stack_text.hpp makes such a stack readable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace miniray {

class StackTrace;

/// A report of AddressSanitizer in a crash file begins with this line.
inline constexpr std::string_view asan_title = "The report of AddressSanitizer:";

/// Loads what a signal handler must not load itself. A parent calls it once, so that its forked children need not.
void prepare_crash_stacks();

/// Installs handlers in this process: a fatal signal writes the C++ stack to the descriptor and then kills the process.
/// In a program with AddressSanitizer, the signals that it handles stay its own, and its reports are written too.
void write_crash_stacks_to(int descriptor);

/// Returns the signal that asks a process for its stack. The process writes it to the same descriptor and continues.
int stack_signal();

/// Returns the state of a process and its CPU time: "sleeping, after 1.5 s of computing". Returns "gone" if there is no
/// such process.
std::string process_state(int pid);

/// Returns the descriptor that stacks go to, so that other code can add to them; -1 if there is none.
int crash_descriptor();

/// Returns whether stacks get names: unless the variable MINIRAY_STACKS was "0" when this process first asked.
bool stacks_are_wanted();

/// Writes a stack of this process, which has not crashed, as the handlers write theirs.
void write_titled_stack(int descriptor, const char* title, const StackTrace& stack);

/// Returns how many processes of this machine, in any control group, the kernel's out-of-memory killer has killed.
std::uint64_t out_of_memory_kills();

}  // namespace miniray
