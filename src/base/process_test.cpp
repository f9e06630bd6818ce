#include "base/process.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>

#include "base/clock.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "tests/child_end.hpp"

namespace miniray {
namespace {

/// Returns everything that arrives at a descriptor until its other end is closed.
std::string read_to_end(int descriptor) {
  std::string text;
  std::array<std::byte, 256> room{};
  for (;;) {
    const system::Transfer transfer = system::read_some(descriptor, room);
    if (transfer.outcome == system::Transfer::Outcome::closed) return text;
    text.append(reinterpret_cast<const char*>(room.data()), transfer.bytes);
  }
}

/// Returns whether the process ends within a time that suffices on a busy machine.
bool ends(ChildProcess& process) { return (system::poll_one(process.pidfd(), POLLIN, 20'000) & POLLIN) != 0; }

/// Waits for the process to end before it reaps it, because reap() kills the group first.
const ExitStatus& end_of(ChildProcess& process) {
  if (!ends(process)) throw std::runtime_error("it does not end");
  return process.reap();
}

ChildProcess forked(const std::function<int()>& child_main, std::span<const int> keep = {}) {
  return ChildProcess(fork_process(keep, {}, child_main));
}

}  // namespace

TEST_CASE("a forked child runs its function, leads a group of its own and exits with the function's result") {
  ChildProcess child = forked([] { return getpgrp() == getpid() ? 42 : 1; });
  CHECK(child.pid() > 0);
  REQUIRE(ends(child));
  CHECK_FALSE(child.running());
  CHECK_FALSE(child.status());  // nothing was reaped yet
  const ExitStatus& status = child.reap();
  CHECK(status.known);
  CHECK(status.exit_code == 42);
  CHECK(status.signal == 0);
  CHECK(status.peak_bytes > 0);
  CHECK(&child.reap() == &status);
}

TEST_CASE("an exception does not leave a forked child") {
  const ChildEnd end = end_of_child([] {
    ChildProcess child = forked([]() -> int { throw std::runtime_error("a bug"); });
    return end_of(child).exit_code;
  });
  CHECK(end.exit_code == EXIT_FAILURE);
  CHECK(end.said.find("ends: a bug") != std::string::npos);
}

TEST_CASE("a forked child keeps the descriptors that it was given, and no others") {
  auto [here, there] = system::make_pipe();
  const Fd other = system::open_null();
  const std::array<int, 1> keep{there.get()};
  ChildProcess child = forked(
      [&] {
        if (fcntl(other.get(), F_GETFD) >= 0 || fcntl(here.get(), F_GETFD) >= 0) return 1;
        return system::write_some(keep[0], "kept").bytes == 4 ? 0 : 2;
      },
      keep);
  there.reset();
  CHECK(read_to_end(here.get()) == "kept");
  CHECK(end_of(child).exit_code == 0);
}

TEST_CASE("hooks are called around a fork, each in the right process") {
  std::string called;
  const ForkHooks hooks{[&] { called += "before "; }, [&] { called += "parent"; }, [&] { called += "child"; }};
  ChildProcess child(fork_process({}, hooks, [&] { return called == "before child" ? 0 : 1; }));
  CHECK(end_of(child).exit_code == 0);
  CHECK(called == "before parent");
}

TEST_CASE("a program is started with the environment and the descriptors that it is given") {
  system::set_environment("MINIRAY_TEST_OLD", "old");
  system::set_environment("MINIRAY_TEST_SECRET", "secret");
  auto [here, there] = system::make_pipe();
  const std::array<int, 1> keep{there.get()};
  const std::string script =
      "printf %s,%s,%s \"$MINIRAY_TEST_OLD\" \"$MINIRAY_TEST_NEW\" \"${MINIRAY_TEST_SECRET-none}\" > /proc/self/fd/" +
      std::to_string(keep[0]);
  ChildProcess child(spawn_process(
      {"sh", "-c", script}, {"MINIRAY_TEST_OLD=replaced", "MINIRAY_TEST_NEW=made", "MINIRAY_TEST_SECRET"}, keep));
  there.reset();
  CHECK(read_to_end(here.get()) == "replaced,made,none");
  CHECK(end_of(child).exit_code == 0);
  system::remove_from_environment("MINIRAY_TEST_OLD");
  system::remove_from_environment("MINIRAY_TEST_SECRET");
}

TEST_CASE("the error for a program that does not exist names it") {
  CHECK_THROWS_WITH_AS((void)spawn_process({"/no/such/program"}, {}, {}),
                       "cannot start the program /no/such/program: No such file or directory", SystemError);
  CHECK_THROWS_WITH_AS((void)spawn_in_group({"/no/such/program"}, 0, 1, 2), doctest::Contains("/no/such/program"),
                       SystemError);
}

TEST_CASE("a program in this process's group uses the descriptors that it is given") {
  auto [input, input_there] = system::make_pipe();
  auto [output_there, output] = system::make_pipe();
  ChildProcess child(
      spawn_in_group({"sh", "-c", "cat; echo oops >&2; exit 3"}, input.get(), output.get(), output.get()));
  CHECK(getpgid(child.pid()) == getpgrp());
  input.reset();
  output.reset();
  CHECK(system::write_some(input_there.get(), "line\n").bytes == 5);
  input_there.reset();
  CHECK(read_to_end(output_there.get()) == "line\noops\n");
  CHECK(child.reap_alone().exit_code == 3);
}

TEST_CASE("a signal that kills is told apart from an exit") {
  ChildProcess child = forked([] {
    for (;;) pause();
    return 0;
  });
  CHECK(child.running());
  CHECK_FALSE(child.signal(12345));  // there is no such signal
  CHECK(child.signal(SIGUSR1));
  REQUIRE(ends(child));
  CHECK(child.reap().signal == SIGUSR1);
  CHECK(child.status()->exit_code == -1);
  CHECK(child.signal(SIGUSR1));  // sends nothing: another process may have the number by now
}

TEST_CASE("reaping a process kills the processes that it started") {
  auto [here, there] = system::make_pipe();
  const std::array<int, 1> keep{there.get()};
  ChildProcess child = forked(
      [&] {
        if (fork() == 0)
          for (;;) pause();
        return 0;
      },
      keep);
  there.reset();
  REQUIRE(ends(child));
  pollfd still{here.get(), POLLIN, 0};
  CHECK(poll(&still, 1, 0) == 0);  // the grandchild has it open
  CHECK(child.reap().exit_code == 0);
  CHECK(read_to_end(here.get()).empty());
}

TEST_CASE("the exit status of a child is not known if other code has reaped it") {
  ChildProcess child = forked([] { return 7; });
  int status = 0;
  REQUIRE(waitpid(child.pid(), &status, 0) == child.pid());
  CHECK_FALSE(child.running());
  CHECK_FALSE(child.reap().known);
  CHECK(child.status()->exit_code == -1);
}

TEST_CASE("a process that was never started is not running, and asking for its end is our bug") {
  const ChildProcess none;
  CHECK_FALSE(none.running());
  CHECK(none.signal(SIGTERM));
  none.signal_group(SIGTERM);  // sends nothing
  const ChildEnd end = end_of_child([] {
    ChildProcess never;
    return never.pidfd();
  });
  CHECK(end.signal == SIGABRT);
  CHECK(end.said.find("pid_ > 0") != std::string::npos);
}

TEST_CASE("a process with a lifeline ends, with its group, when the other end is closed") {
  auto [here, there] = system::socket_pair();
  auto [told, tells] = system::make_pipe();
  const std::array<int, 2> keep{there.get(), tells.get()};
  ChildProcess child = forked(
      [&] {
        hold_lifeline(keep[0]);
        (void)fork();  // both processes write that they are there, and wait
        (void)system::write_some(keep[1], "x");
        for (;;) pause();
        return 0;
      },
      keep);
  there.reset();
  tells.reset();
  std::array<std::byte, 1> said{};
  for (int i = 0; i < 2; ++i) REQUIRE(system::read_some(told.get(), said).bytes == 1);
  CHECK(child.running());
  here.reset();
  REQUIRE(ends(child));
  CHECK(read_to_end(told.get()).empty());  // both are gone
  CHECK(child.reap().signal == SIGKILL);
}

TEST_CASE("a lifeline whose other end is already closed ends the process, and a bad descriptor is an error") {
  auto [here, there] = system::socket_pair();
  const std::array<int, 1> keep{there.get()};
  here.reset();
  ChildProcess child = forked(
      [&] {
        hold_lifeline(keep[0]);
        return 0;
      },
      keep);
  const ExitStatus& status = end_of(child);
  CHECK((status.signal == SIGKILL || status.exit_code == EXIT_FAILURE));
  CHECK_THROWS_WITH_AS(hold_lifeline(-1), doctest::Contains("tie a process to its parent"), SystemError);
}

TEST_CASE("all descriptors are closed but the standard ones and the named ones") {
  CHECK(end_of_child([] {
          const int first = open("/dev/null", O_RDONLY), second = open("/dev/null", O_RDONLY),
                    third = open("/dev/null", O_RDONLY);
          const std::array<int, 2> keep{third, first};
          close_all_but(keep);
          const auto is_open = [](int number) { return fcntl(number, F_GETFD) >= 0; };
          return is_open(STDERR_FILENO) && is_open(first) && !is_open(second) && is_open(third) ? 0 : 1;
        }).exit_code == 0);
}

TEST_CASE("a process can name itself, and a descriptor can be closed on exec") {
  CHECK(end_of_child([] {
          name_this_process("miniray-test");
          const int descriptor = open("/dev/null", O_RDONLY);
          set_close_on_exec(descriptor);
          const bool named = system::read_small_file("/proc/self/comm") == "miniray-test\n";
          return named && fcntl(descriptor, F_GETFD) == FD_CLOEXEC ? 0 : 1;
        }).exit_code == 0);
}

}  // namespace miniray
