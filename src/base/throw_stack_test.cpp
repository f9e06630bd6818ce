#include "base/throw_stack.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

// Not in MiniRay's namespace, whose functions a stack leaves out.
namespace thrower {

struct Cleaner {
  int* cleaned;
  ~Cleaner() { ++*cleaned; }
};

[[gnu::noinline]] void throw_here(int* cleaned) {
  const Cleaner cleaner{cleaned};
  throw std::out_of_range("no such row");
}

}  // namespace thrower

namespace miniray {

TEST_CASE("an exception that a probe notices has left the stack of its throw") {
  int cleaned = 0;
  std::string what;
  try {
    thrower::throw_here(&cleaned);
  } catch (const ThrowProbe&) {
    FAIL("a probe caught something");
  } catch (const std::exception& error) {
    what = error.what();
  }
  CHECK(what == "no such row");
  CHECK(cleaned == 1);
  const std::string stack = last_throw_stack();
  CHECK(stack.starts_with("C++ stack at the throw:\n  thrower::throw_here(int*)"));
  CHECK(last_throw_stack().empty());  // it was taken
}

TEST_CASE("an exception that is caught before a probe leaves nothing") {
  int cleaned = 0;
  try {
    try {
      thrower::throw_here(&cleaned);
    } catch (const std::out_of_range&) {
      ++cleaned;
    }
  } catch (const ThrowProbe&) {
  }
  CHECK(cleaned == 2);
  CHECK(last_throw_stack().empty());
}

}  // namespace miniray
