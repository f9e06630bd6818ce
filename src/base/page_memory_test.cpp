#include "base/page_memory.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <new>

namespace miniray {

TEST_CASE("memory keeps its content while it grows") {
  system::PageMemory memory;
  memory.grow(1);
  memory.data()[0] = std::byte{7};
  for (std::size_t bytes = 4096; bytes <= (std::size_t{64} << 20); bytes *= 2) {
    memory.grow(bytes);
    CHECK(memory.bytes() >= bytes);
    CHECK(memory.data()[0] == std::byte{7});
    memory.data()[bytes - 1] = std::byte{8};
  }
  const system::PageMemory moved = std::move(memory);
  CHECK(moved.data()[0] == std::byte{7});
}

TEST_CASE("memory that the system does not have is refused, and what is there stays") {
  system::PageMemory memory;
  memory.grow(100);
  memory.data()[99] = std::byte{9};
  CHECK_THROWS_AS(memory.grow(SIZE_MAX / 2), std::bad_alloc);
  CHECK_THROWS_AS(memory.grow(SIZE_MAX), std::bad_alloc);
  CHECK(memory.data()[99] == std::byte{9});
}

}  // namespace miniray
