#include "wire/buffer_recycler.hpp"

#include <doctest/doctest.h>

#include "miniray/limits.hpp"

namespace miniray {
namespace {

// A buffer whose bytes have all arrived.
Buffer received_by(BufferRecycler& recycler, std::size_t size) {
  system::PageMemory memory = recycler.begin(size);
  memory.grow(size);
  return recycler.finish(std::move(memory), size);
}

}  // namespace

TEST_CASE("a buffer's memory is used again once the buffer is gone, and not before") {
  BufferRecycler recycler;
  const std::size_t size = 2 * limits::recycled_buffer_bytes_min;
  Buffer first = received_by(recycler, size);
  const std::byte* memory = first.data;
  const Buffer second = received_by(recycler, size);
  CHECK(second.data != memory);
  first = {};
  CHECK(recycler.begin(size - 100).data() == memory);
}

TEST_CASE("a buffer may outlive its recycler") {
  Buffer buffer;
  {
    BufferRecycler recycler;
    buffer = received_by(recycler, limits::recycled_buffer_bytes_min);
  }
  buffer.data[0] = std::byte{1};
  CHECK(buffer.data[0] == std::byte{1});
}

TEST_CASE("a block that is much too large stays for a larger buffer") {
  BufferRecycler recycler;
  const std::byte* large = received_by(recycler, 16 * limits::recycled_buffer_bytes_min).data;
  CHECK(recycler.begin(limits::recycled_buffer_bytes_min).data() != large);
}

TEST_CASE("the memory of a large buffer begins small") {
  BufferRecycler recycler;
  CHECK(recycler.begin(64 * limits::gib).bytes() == limits::buffer_growth_bytes);
}

}  // namespace miniray
