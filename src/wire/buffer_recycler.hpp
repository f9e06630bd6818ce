// Memory for large received buffers, which grows as their bytes arrive and is used again instead of being returned to
// the kernel: faulting in new pages costs more than copying into them. A buffer may outlive the recycler, and any
// thread may destroy it.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/page_memory.hpp"
#include "miniray/array.hpp"

namespace miniray {

class BufferRecycler {
 public:
  /// Returns the memory for a buffer that will have this many bytes: what an earlier buffer has left, or as little as a
  /// buffer begins with. The caller has it grow as bytes arrive, and gives it to finish().
  [[nodiscard]] system::PageMemory begin(std::size_t size);
  /// Returns a buffer of the first `size` bytes of the memory.
  [[nodiscard]] Buffer finish(system::PageMemory memory, std::size_t size);

 private:
  // The memory that is free. A buffer in use holds a weak reference, and puts its memory back if the shelf still
  // exists.
  struct Shelf {
    std::mutex mutex;
    std::vector<system::PageMemory> blocks;
    std::size_t bytes = 0;
    void put(system::PageMemory block) noexcept;
    bool take(std::size_t size, system::PageMemory& block);
  };
  struct Lent;
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

}  // namespace miniray
