#include "base/stream_guard.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "base/system.hpp"
#include "miniray/error.hpp"
#include "tests/child_end.hpp"
#include "tests/sanitized.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

constexpr int silence_ms_max = 60'000;  // longer than any of these tests

int busy_for_ever() {
  for (volatile bool forever = true; forever;) {
  }
  return 0;
}

// A child guards a socket that it made itself, because a fork closes its parent's Fds in it.
std::array<int, 2> sockets() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) _exit(98);
  return ends;
}

// Returns for how long the guard of this process will still bear silence. Its timer is the only one of the process, and
// has the number 0.
std::int64_t silence_left_ns() {
  itimerspec left{};
  if (syscall(SYS_timer_gettime, 0, &left) != 0) throw SystemError("ask a timer for its time", errno);
  return left.it_value.tv_sec * 1'000'000'000LL + left.it_value.tv_nsec;
}

}  // namespace

TEST_CASE("the end of a guarded stream kills the process, whatever it computes" * doctest::skip(under_tsan)) {
  const ChildEnd end = end_of_child([] {
    const std::array<int, 2> ends = sockets();
    const StreamGuard guard(ends[0], silence_ms_max);
    close(ends[1]);
    return busy_for_ever();
  });
  CHECK(end.signal == SIGKILL);
}

TEST_CASE("the end is noticed behind what has not been read, and if it came before the guard" *
          doctest::skip(under_tsan)) {
  for (const bool close_first : {true, false}) {
    CAPTURE(close_first);
    const ChildEnd end = end_of_child([close_first] {
      const std::array<int, 2> ends = sockets();
      (void)system::write_some(ends[1], "unread");
      if (close_first) close(ends[1]);
      const StreamGuard guard(ends[0], silence_ms_max);
      if (!close_first) close(ends[1]);
      return busy_for_ever();
    });
    CHECK(end.signal == SIGKILL);
  }
}

TEST_CASE("too long a silence kills the process, and what is said begins the time anew" * doctest::skip(under_tsan)) {
  const ChildEnd silent = end_of_child([] {
    const std::array<int, 2> ends = sockets();
    const StreamGuard guard(ends[0], 20);
    return busy_for_ever();
  });
  CHECK(silent.signal == SIGKILL);
  const ChildEnd heard = end_of_child([] {
    const std::array<int, 2> ends = sockets();
    const StreamGuard guard(ends[0], silence_ms_max);
    const std::int64_t begun_ns = silence_left_ns();
    wait_until("the passing of time", [&] { return silence_left_ns() < begun_ns - 1'000'000; });
    const std::int64_t silent_ns = silence_left_ns();
    (void)system::write_some(ends[1], "x");
    wait_until("a time that begins anew", [&] { return silence_left_ns() > silent_ns; });
    return 0;
  });
  CHECK(heard.exit_code == 0);
}

TEST_CASE("without its guard a stream may end, and another can be guarded") {
  const ChildEnd end = end_of_child([] {
    const std::array<int, 2> ends = sockets();
    {
      const StreamGuard guard(ends[0], silence_ms_max);
    }
    close(ends[1]);
    const std::array<int, 2> others = sockets();
    const StreamGuard guard(others[0], silence_ms_max);
    return 0;
  });
  CHECK(end.exit_code == 0);
}

TEST_CASE("a descriptor that is not a stream cannot be guarded, and a second guard at the same time is our bug") {
  CHECK(end_of_child([] {
          try {
            const StreamGuard guard(12345, silence_ms_max);
            return 1;
          } catch (const SystemError&) {
          }
          const std::array<int, 2> ends = sockets();  // after the failure, another stream can be guarded
          const StreamGuard guard(ends[0], silence_ms_max);
          return 0;
        }).exit_code == 0);
  const ChildEnd twice = end_of_child([] {
    const std::array<int, 2> ends = sockets();
    const StreamGuard first(ends[0], silence_ms_max);
    const StreamGuard second(ends[1], silence_ms_max);
    return 0;
  });
  CHECK(twice.signal == SIGABRT);
  CHECK(twice.said.find("guarded.descriptor < 0") != std::string::npos);
}

}  // namespace miniray
