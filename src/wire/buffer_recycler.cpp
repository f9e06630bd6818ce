#include "wire/buffer_recycler.hpp"

#include <algorithm>
#include <new>

#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr std::size_t page_bytes = 4096;

}  // namespace

void BufferRecycler::Shelf::put(Block block) {
  const std::scoped_lock lock(mutex);
  if (bytes + block.capacity > limits::recycled_bytes_max) return;  // then the block is freed
  bytes += block.capacity;
  blocks.push_back(std::move(block));
}

bool BufferRecycler::Shelf::take(std::size_t size, Block& block) {
  const std::scoped_lock lock(mutex);
  // The newest block is most likely in the cache. A block more than twice as large stays for a larger buffer.
  const auto found = std::find_if(blocks.rbegin(), blocks.rend(), [&](const Block& candidate) {
    return candidate.capacity >= size && candidate.capacity / 2 <= size;
  });
  if (found == blocks.rend()) return false;
  block = std::move(*found);
  bytes -= block.capacity;
  blocks.erase(std::next(found).base());
  return true;
}

Buffer BufferRecycler::allocate(std::size_t size) {
  if (size < limits::recycled_buffer_bytes_min) return Buffer::allocate(size);
  Block block{{nullptr, &std::free}, 0};
  if (!shelf_->take(size, block)) {
    block.capacity = (size + page_bytes - 1) / page_bytes * page_bytes;
    block.memory.reset(std::aligned_alloc(page_bytes, block.capacity));
    if (!block.memory) throw std::bad_alloc();
  }
  auto* data = static_cast<std::byte*>(block.memory.get());
  auto bring_back = [capacity = block.capacity, shelf = std::weak_ptr(shelf_)](void* memory) {
    Block returned{{memory, &std::free}, capacity};
    if (const auto alive = shelf.lock()) alive->put(std::move(returned));
  };
  return {std::shared_ptr<void>(block.memory.release(), std::move(bring_back)), data, size};
}

}  // namespace miniray
