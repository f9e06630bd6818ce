// Memory for large received buffers, used again instead of returned to the kernel: faulting fresh pages in costs more
// than the copy into them. Buffers may outlive the recycler and be let go by any thread.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "miniray/array.hpp"

namespace miniray {

class BufferRecycler {
 public:
  /// Memory that is not set to anything.
  [[nodiscard]] Buffer allocate(std::size_t size);

 private:
  struct Block {
    std::unique_ptr<void, decltype(&std::free)> memory;
    std::size_t capacity;
  };
  // Shared with the buffers that are out, which bring their blocks back while it lives.
  struct Shelf {
    std::mutex mutex;
    std::vector<Block> blocks;
    std::size_t bytes = 0;
    void put(Block block);
    bool take(std::size_t size, Block& block);
  };
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

}  // namespace miniray
