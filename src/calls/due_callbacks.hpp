// Callbacks of futures that become done while other callbacks run. If each ran inside the one before it, a chain of
// 20,000 continuations would overflow the stack.
#pragma once

#include "miniray/future.hpp"

namespace miniray {

/// Inside a run() of this thread, has that run() call the callbacks next, and returns at once. Otherwise calls them
/// now. What they throw comes out of the run() that calls them.
void run_soon(Callbacks callbacks);
/// Destroys the callbacks without calling them, likewise.
void drop_soon(Callbacks callbacks);

}  // namespace miniray
