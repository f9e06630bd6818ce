// What can be learned of a process that crashed: its stack, written by a signal handler to a descriptor, and
// whether the kernel's out-of-memory killer was at work.
#pragma once

#include <cstdint>
#include <string>

namespace miniray {

/// What a signal handler must not do for the first time. Call it in the parent, so that children need not.
void prepare_crash_stacks();

/// From now on a fatal signal of this process writes its C++ stack to the descriptor, then kills the process.
void write_crash_stacks_to(int descriptor);

/// The signal that asks a process for its stack: its C++ stack goes to the same descriptor, and the process goes on.
int stack_signal();

/// "sleeping", "running" and so on, and how much it has computed.
std::string process_state(int pid);

/// Where they go, for other handlers that have something to add; -1 if nowhere.
int crash_descriptor();

/// Makes the symbols of a written stack readable.
std::string demangle_stack(const std::string& stack);

/// How often the kernel's out-of-memory killer has struck on this machine, in any control group.
std::uint64_t out_of_memory_kills();

}  // namespace miniray
