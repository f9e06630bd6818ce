#include "wire/buffer_recycler.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "miniray/limits.hpp"

namespace miniray {

void BufferRecycler::Shelf::put(system::PageMemory block) noexcept {
  const std::scoped_lock lock(mutex);
  if (bytes + block.bytes() > limits::recycled_bytes_max) return;  // then the block is freed
  try {
    bytes += block.bytes();
    blocks.push_back(std::move(block));
  } catch (...) {  // no memory for the list: the block is freed, too
    bytes -= block.bytes();
  }
}

bool BufferRecycler::Shelf::take(std::size_t size, system::PageMemory& block) {
  const std::scoped_lock lock(mutex);
  // The newest block is most likely in the cache. A block more than twice as large stays for a larger buffer.
  const auto found = std::find_if(blocks.rbegin(), blocks.rend(), [&](const system::PageMemory& candidate) {
    return candidate.bytes() >= size && candidate.bytes() / 2 <= size;
  });
  if (found == blocks.rend()) return false;
  block = std::move(*found);
  bytes -= block.bytes();
  blocks.erase(std::next(found).base());
  return true;
}

/// The memory of a buffer that is in use.
struct BufferRecycler::Lent {
  Lent(system::PageMemory lent, const std::shared_ptr<Shelf>& of) : memory(std::move(lent)), shelf(of) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() {
    if (const std::shared_ptr<Shelf> alive = shelf.lock()) alive->put(std::move(memory));
  }
  system::PageMemory memory;
  const std::weak_ptr<Shelf> shelf;
};

system::PageMemory BufferRecycler::begin(std::size_t size) {
  system::PageMemory memory;
  if (!shelf_->take(size, memory)) memory.grow(std::min(size, limits::buffer_growth_bytes));
  return memory;
}

Buffer BufferRecycler::finish(system::PageMemory memory, std::size_t size) {
  MINIRAY_CHECK(memory.bytes() >= size, memory.bytes(), size);
  std::byte* const data = memory.data();
  return {std::make_shared<Lent>(std::move(memory), shelf_), data, size};
}

}  // namespace miniray
