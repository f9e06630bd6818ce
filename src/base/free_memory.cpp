#include "base/free_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>

#include "base/system.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray::system {
namespace {

constexpr std::uint64_t unknown_bytes = std::numeric_limits<std::uint64_t>::max();

// Returns the number that begins the text, after spaces; `unknown_bytes` if there is none, as in "max".
std::uint64_t leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? number : unknown_bytes;
}

std::uint64_t meminfo_bytes(std::string_view meminfo, std::string_view key) {
  const std::size_t found = meminfo.find(key);
  if (found == std::string_view::npos) return unknown_bytes;
  const std::uint64_t kib = leading_number(meminfo.substr(found + key.size()));
  return kib > unknown_bytes / 1024 ? unknown_bytes : kib * 1024;
}

// Each cgroup above this process's own has a limit, too. In a container the own one is the root that can be seen.
std::uint64_t cgroup_limit() {
  const std::string line = read_small_file("/proc/self/cgroup");
  const std::size_t found = line.find("0::/");
  std::uint64_t least = leading_number(read_small_file("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  if (found == std::string::npos) return least;
  std::string path = line.substr(found + 3, line.find('\n', found) - found - 3);
  for (;;) {
    while (path.ends_with('/')) path.pop_back();
    const std::string file = "/sys/fs/cgroup" + path + "/memory.max";
    least = std::min(least, leading_number(read_small_file(file.c_str())));
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::uint64_t available_in(std::string_view meminfo) {
  const std::uint64_t memory = meminfo_bytes(meminfo, "MemAvailable:");
  const std::uint64_t swap = meminfo_bytes(meminfo, "SwapFree:");
  return swap > unknown_bytes - memory || swap == unknown_bytes ? memory : memory + swap;
}

std::uint64_t available_memory() { return std::min(available_in(read_small_file("/proc/meminfo")), cgroup_limit()); }

bool has_room(std::size_t bytes) { return bytes < limits::checked_memory_bytes_min || bytes <= available_memory(); }

void require_room(std::size_t bytes, const std::string& what) {
  if (bytes < limits::checked_memory_bytes_min) return;
  const std::uint64_t available = available_memory();
  if (bytes <= available) return;
  throw SystemError(what + " of " + std::to_string(bytes) + " bytes, because this machine has only " +
                        std::to_string(available) +
                        " bytes of memory available; ask for less, free some, or raise the memory limit",
                    ENOMEM);
}

}  // namespace miniray::system
