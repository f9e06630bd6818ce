#include "base/page_map.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "miniray/limits.hpp"

namespace miniray::system {

// The kernel has a word for each page in /proc/self/pagemap. A page that was written to has become anonymous memory,
// which is present or swapped out; a page that was only read belongs to the file.
bool is_unwritten(std::span<const std::byte> bytes) {
  constexpr std::uint64_t present = std::uint64_t{1} << 63, swapped = std::uint64_t{1} << 62;
  constexpr std::uint64_t of_file = std::uint64_t{1} << 61;
  if (bytes.empty()) return true;
  const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (map < 0) return false;
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  std::uintptr_t page = begin / page_bytes;
  const std::uintptr_t end = (begin + bytes.size() - 1) / page_bytes + 1;
  std::vector<std::uint64_t> words(std::min<std::size_t>(end - page, limits::page_words_per_read));
  bool unwritten = true;
  while (unwritten && page < end) {
    const std::size_t wanted = std::min<std::size_t>(end - page, words.size());
    const ssize_t size =
        pread(map, words.data(), wanted * sizeof(std::uint64_t), static_cast<off_t>(page * sizeof(std::uint64_t)));
    const std::size_t count = size > 0 ? static_cast<std::size_t>(size) / sizeof(std::uint64_t) : 0;
    unwritten = count > 0 &&
                std::all_of(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count), [&](std::uint64_t word) {
                  return (word & (present | swapped)) == 0 || ((word & present) != 0 && (word & of_file) != 0);
                });
    page += count;
  }
  close(map);
  return unwritten;
}

}  // namespace miniray::system
