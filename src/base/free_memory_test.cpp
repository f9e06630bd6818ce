#include "base/free_memory.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "base/fd.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {

TEST_CASE("the available memory is read from /proc/meminfo, with the free swap space") {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  CHECK(system::available_in("MemTotal:  900 kB\nMemAvailable:     700 kB\nSwapFree:   10 kB\n") == 710 * 1024);
  CHECK(system::available_in("MemAvailable: 700 kB\n") == 700 * 1024);
  CHECK(system::available_in("MemTotal: 900 kB\nSwapFree: 10 kB\n") == unknown);
  CHECK(system::available_in("MemAvailable: many kB\n") == unknown);
  CHECK(system::available_memory() > 0);
  CHECK(system::available_memory() < std::uint64_t{1} << 45);
}

TEST_CASE("memory that the machine does not have is refused before any of it is taken") {
  constexpr std::size_t too_much = std::size_t{1} << 45;
  CHECK(!system::has_room(too_much));
  CHECK(system::has_room(4096));
  CHECK(!system::sealed_memory("miniray-test", too_much).valid());
  CHECK_THROWS_WITH_AS(system::require_room(too_much, "make an array"),
                       doctest::Contains("cannot make an array of 35184372088832 bytes, because this machine has only"),
                       SystemError);
  system::require_room(4096, "make an array");
}

}  // namespace miniray
