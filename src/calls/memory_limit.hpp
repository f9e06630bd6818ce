// A limit on the memory of one call, kept by the kernel: what this process may have of private, writable memory.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string>

namespace miniray {

/// While it lives, this process may take so much more than it had: what wants more gets no memory (std::bad_alloc,
/// MemoryError). The limit is the whole process's, so a worker makes such a call alone.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t more_bytes);
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit();

  /// The cause and the cure, for a call that got no memory; `why` is what the allocator said.
  [[nodiscard]] static std::string explain(std::uint64_t more_bytes, const std::string& why = {});

 private:
  rlimit before_{};
};

}  // namespace miniray
