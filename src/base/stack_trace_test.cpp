#include "base/stack_trace.hpp"

#include <doctest/doctest.h>

#include "base/crash.hpp"
#include "base/stack_text.hpp"
#include "base/system.hpp"

// Not in MiniRay's namespace, whose functions a stack leaves out.
namespace caller {

[[gnu::noinline]] void recurse(int depth, miniray::StackTrace& stack) {
  if (depth == 0)
    stack.take();
  else
    recurse(depth - 1, stack);
  asm volatile("");  // or else the call would be a jump
}

[[gnu::noinline]] void ping(int depth, miniray::StackTrace& stack);
[[gnu::noinline]] void pong(int depth, miniray::StackTrace& stack) {
  ping(depth, stack);
  asm volatile("");
}
[[gnu::noinline]] void ping(int depth, miniray::StackTrace& stack) {
  if (depth == 0)
    stack.take();
  else
    pong(depth - 1, stack);
  asm volatile("");
}

// Each level is another function, and none repeats.
template <int level>
[[gnu::noinline]] void descend(miniray::StackTrace& stack) {
  if constexpr (level == 0)
    stack.take();
  else
    descend<level - 1>(stack);
  asm volatile("");
}

}  // namespace caller

namespace miniray {
namespace {

std::string text_of_stack(const StackTrace& stack) {
  const Fd file = system::memory_file("miniray-test");
  write_titled_stack(file.get(), "C++ stack:", stack);
  return readable_stacks(system::read_memory_file(file.get(), limits::crash_report_bytes_max));
}

}  // namespace

TEST_CASE("a stack has the functions that were called, innermost first") {
  StackTrace stack;
  CHECK(stack.empty());
  caller::descend<2>(stack);
  CHECK_FALSE(stack.empty());
  const std::string text = text_of_stack(stack);
  const std::size_t inner = text.find("caller::descend<0>"), outer = text.find("caller::descend<2>");
  REQUIRE(outer != std::string::npos);
  CHECK(inner < text.find("caller::descend<1>"));
  CHECK(text.find("caller::descend<1>") < outer);
  stack.clear();
  CHECK(stack.empty());
}

TEST_CASE("a deep recursion takes one line, or as many as functions take turns") {
  StackTrace stack;
  caller::recurse(10'000, stack);
  CHECK(text_of_stack(stack).find(" times\n") != std::string::npos);
  CHECK(text_of_stack(stack).find("caller::recurse(int, miniray::StackTrace&)") != std::string::npos);
  CHECK(text_of_stack(stack).find("left out") == std::string::npos);
  caller::ping(10'000, stack);
  const std::string text = text_of_stack(stack);
  CHECK(text.find("  ... these 2 lines 10000 times\n") != std::string::npos);
  CHECK(text.find("left out") == std::string::npos);
}

TEST_CASE("of a stack that is too long, the innermost and the outermost calls are kept") {
  StackTrace stack;
  caller::descend<200>(stack);
  const std::string text = text_of_stack(stack);
  CHECK(text.find("caller::descend<10>") != std::string::npos);
  CHECK(text.find("caller::descend<100>") == std::string::npos);
  CHECK(text.find("caller::descend<200>") != std::string::npos);
  CHECK(text.find(" calls that are left out\n") != std::string::npos);
}

}  // namespace miniray
