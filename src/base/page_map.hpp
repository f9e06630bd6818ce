// Finds out whether a process has written to memory that it mapped privately.
#pragma once

#include <cstddef>
#include <span>

namespace miniray::system {

/// Returns whether no page of these bytes, which are part of a private mapping of a file, was written to. It asks the
/// kernel, which takes about 10 ns for each page that is mapped. Returns false if the kernel does not say.
[[nodiscard]] bool is_unwritten(std::span<const std::byte> bytes);

}  // namespace miniray::system
