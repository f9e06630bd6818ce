// A limit on the memory of one call. The kernel enforces it for the private, writable memory of this process.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string>

namespace miniray {

/// While it lives, this process may take `more_bytes` more than it had; an allocation beyond that fails
/// (std::bad_alloc, MemoryError). The limit holds for the whole process, so a worker runs such a call alone.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t more_bytes);
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit();

  /// Returns the cause and the cure for a call that got no memory; `why` is the allocator's text.
  [[nodiscard]] static std::string explain(std::uint64_t more_bytes, const std::string& why = {});

 private:
  rlimit before_{};
};

}  // namespace miniray
