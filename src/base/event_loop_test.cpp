#include "base/event_loop.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <optional>

namespace miniray {
namespace {

// A pipe: its one end becomes readable when something is written to the other.
struct Wire {
  Wire() : ends(system::make_pipe()) {}
  void say() const { REQUIRE(system::write_some(ends.second.get(), "x").bytes == 1); }
  [[nodiscard]] int fileno() const { return ends.first.get(); }
  std::pair<Fd, Fd> ends;
};

}  // namespace

TEST_CASE("an action is called while its descriptor is ready, and as long as its watch lives") {
  const Wire wire;
  EventLoop loop;
  int calls = 0;
  auto watch = std::make_optional(loop.watch(wire.fileno(), [&] { ++calls; }));
  CHECK(watch->active());
  CHECK(loop.poll(0));  // nothing is ready, but no signal came
  CHECK(calls == 0);
  wire.say();
  CHECK(loop.poll(1000));
  CHECK(loop.poll(1000));  // still ready, because the byte was not read
  CHECK(calls == 2);
  watch.reset();
  CHECK(loop.poll(0));
  CHECK(calls == 2);
}

TEST_CASE("a watch that is moved stays active, and one that is assigned to ends") {
  const Wire first, second;
  EventLoop loop;
  int first_calls = 0, second_calls = 0;
  EventLoop::Watch watch = loop.watch(first.fileno(), [&] { ++first_calls; });
  EventLoop::Watch moved = std::move(watch);
  CHECK_FALSE(watch.active());  // NOLINT(bugprone-use-after-move): what is left of it
  first.say();
  CHECK(loop.poll(1000));
  CHECK(first_calls == 1);
  moved = loop.watch(second.fileno(), [&] { ++second_calls; });
  second.say();
  CHECK(loop.poll(1000));
  CHECK(first_calls == 1);
  CHECK(second_calls == 1);
}

TEST_CASE("an action may destroy any watch: its own and those that are ready at the same time") {
  const Wire one, other;
  EventLoop loop;
  int calls = 0;
  EventLoop::Watch first, second;
  const auto end_both = [&] {
    ++calls;
    first.reset();
    second.reset();
  };
  first = loop.watch(one.fileno(), end_both);
  second = loop.watch(other.fileno(), end_both);
  one.say();
  other.say();
  CHECK(loop.poll(1000));
  CHECK(loop.poll(0));
  CHECK(calls == 1);
}

TEST_CASE("an action may watch another descriptor, which the next poll looks at") {
  const Wire one, other;
  EventLoop loop;
  int calls = 0;
  EventLoop::Watch second;
  EventLoop::Watch first = loop.watch(one.fileno(), [&] {
    first.reset();
    second = loop.watch(other.fileno(), [&] { ++calls; });
  });
  one.say();
  other.say();
  CHECK(loop.poll(1000));
  CHECK(calls == 0);
  CHECK(loop.poll(1000));
  CHECK(calls == 1);
}

TEST_CASE("a watch can wait for room to write, and for the peer to hang up") {
  auto [here, there] = system::socket_pair();
  EventLoop loop;
  int writable = 0, hangups = 0;
  {
    const EventLoop::Watch watch = loop.watch(here.get(), [&] { ++writable; }, system::Interest::writable);
    CHECK(loop.poll(1000));
  }
  CHECK(writable == 1);
  const EventLoop::Watch watch = loop.watch(here.get(), [&] { ++hangups; }, system::Interest::hangup);
  REQUIRE(system::write_some(there.get(), "x").bytes == 1);
  CHECK(loop.poll(0));
  CHECK(hangups == 0);  // something to read is not a hang-up
  there.reset();
  CHECK(loop.poll(1000));
  CHECK(hangups == 1);
}

TEST_CASE("a signal interrupts the wait, and poll returns false") {
  EventLoop loop;
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {};
  REQUIRE(sigaction(SIGALRM, &action, &before) == 0);
  const itimerval again{{0, 5000}, {0, 5000}}, never{};  // repeated, because the first may come before the wait
  setitimer(ITIMER_REAL, &again, nullptr);
  CHECK_FALSE(loop.poll(60'000));
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

}  // namespace miniray
