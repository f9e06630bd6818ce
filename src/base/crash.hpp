// Finds out why a process crashed: a signal handler writes the stack to a descriptor, and the kernel counts how often
// its out-of-memory killer has killed a process.
#pragma once

#include <cstdint>
#include <string>

namespace miniray {

/// Loads what a signal handler must not load itself. A parent calls it once, so that its forked children need not.
void prepare_crash_stacks();

/// Installs handlers in this process: a fatal signal writes the C++ stack to the descriptor and then kills the process.
void write_crash_stacks_to(int descriptor);

/// Returns the signal that asks a process for its stack. The process writes it to the same descriptor and continues.
int stack_signal();

/// Returns the state of a process and its CPU time: "sleeping, after 1.5 s of computing". Returns "gone" if there is no
/// such process.
std::string process_state(int pid);

/// Returns the descriptor that stacks go to, so that other code can add to them; -1 if there is none.
int crash_descriptor();

/// Returns the stack with demangled symbols.
std::string demangle_stack(const std::string& stack);

/// Returns how many processes of this machine, in any control group, the kernel's out-of-memory killer has killed.
std::uint64_t out_of_memory_kills();

}  // namespace miniray
