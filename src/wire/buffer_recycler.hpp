// Allocates memory for large received buffers and uses it again instead of returning it to the kernel, because faulting
// in new pages costs more than copying into them. A buffer may outlive the recycler, and any thread may destroy it.
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
  /// Returns a buffer of uninitialised memory.
  [[nodiscard]] Buffer allocate(std::size_t size);

 private:
  struct Block {
    std::unique_ptr<void, decltype(&std::free)> memory;
    std::size_t capacity;
  };
  // The memory that is free. A buffer in use holds a weak reference, and puts its block back if the shelf still exists.
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
