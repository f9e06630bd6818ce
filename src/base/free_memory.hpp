// How much memory the machine has left, so that a reservation which cannot succeed fails before it takes the memory of
// other processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace miniray::system {

/// Returns the bytes that the text of /proc/meminfo calls available, and the free ones of the swap space; all ones if
/// the text does not say.
[[nodiscard]] std::uint64_t available_in(std::string_view meminfo);
/// Returns how many bytes this process can still get: what the machine has available, and at most the limit of the
/// process's memory cgroup. All ones if the system does not say.
[[nodiscard]] std::uint64_t available_memory();
/// Returns whether the machine has room for so many bytes. Less than limits::checked_memory_bytes_min is not looked up.
[[nodiscard]] bool has_room(std::size_t bytes);
/// Throws SystemError (ENOMEM), which names the size, what is available and the cure, unless has_room(bytes). `what` is
/// what the memory is for, as in "make an array".
void require_room(std::size_t bytes, const std::string& what);

}  // namespace miniray::system
