#include "wire/buffer_recycler.hpp"

#include <doctest/doctest.h>

#include "miniray/limits.hpp"

namespace miniray {

TEST_CASE("a buffer's memory is used again once the buffer is gone, and not before") {
  BufferRecycler recycler;
  const std::size_t size = 2 * limits::recycled_buffer_bytes_min;
  Buffer first = recycler.allocate(size);
  const std::byte* memory = first.data;
  const Buffer second = recycler.allocate(size);
  CHECK(second.data != memory);
  first = {};
  CHECK(recycler.allocate(size - 100).data == memory);
}

TEST_CASE("a buffer may outlive its recycler") {
  Buffer buffer;
  {
    BufferRecycler recycler;
    buffer = recycler.allocate(limits::recycled_buffer_bytes_min);
  }
  buffer.data[0] = std::byte{1};
  CHECK(buffer.data[0] == std::byte{1});
}

TEST_CASE("a block that is much too large stays for a larger buffer") {
  BufferRecycler recycler;
  const std::byte* large = recycler.allocate(16 * limits::recycled_buffer_bytes_min).data;
  CHECK(recycler.allocate(limits::recycled_buffer_bytes_min).data != large);
}

}  // namespace miniray
