#include "base/crash.hpp"

#include <doctest/doctest.h>
#include <string.h>

#include <array>

#include "base/stack_text.hpp"
#include "base/system.hpp"
#include "tests/child_end.hpp"
#include "tests/sanitized.hpp"

namespace miniray {
namespace {

// Runs code in a child. Returns what the child wrote to its crash file, and how it ended.
struct Crash {
  ChildEnd end;
  std::string written;
};

template <class Function>
Crash crash_of(Function function) {
  const Fd file = system::memory_file("miniray-test");
  const std::array<int, 1> keep{file.get()};
  const KeepAcrossFork kept(keep);
  Crash crash;
  crash.end = end_of_child([&] {
    write_crash_stacks_to(keep[0]);
    return function();
  });
  crash.written = system::read_memory_file(file.get(), 1 << 20);
  return crash;
}

// Recurses deep enough to overflow any stack. The addresses keep the compiler from turning it into a loop.
int sink_through_the_stack(volatile char* above) {
  std::array<volatile char, 4096> room;
  room[0] = *above;
  return room[0] == 1 ? 0 : sink_through_the_stack(room.data()) + room[1];
}

[[gnu::noinline]] int crash_in_a_function(int* nothing) { return *static_cast<volatile int*>(nothing); }

}  // namespace

TEST_CASE("a fatal signal leaves a stack, and kills with the same signal") {
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    CAPTURE(number);
    const Crash crash = crash_of([number] { return raise(number); });
    CHECK(crash.end.signal == number);
    CHECK(crash.written.find("C++ stack at SIG" + std::string(sigabbrev_np(number)) + ":\n") == 0);
    CHECK(crash.written.find("(") != std::string::npos);
    CHECK_FALSE(has_unfinished_stack(crash.written));
    // The frames of a sanitizer's interceptors stand between, and names are not found through them everywhere.
    if (!sanitized) CHECK(readable_stacks(crash.written, OwnCalls::keep_all).find("crash_of") != std::string::npos);
  }
}

TEST_CASE("a call of a null pointer leaves its caller") {
  const Crash crash = crash_of([] {
    int (*volatile nothing)() = nullptr;
    return nothing() + 1;
  });
  CHECK(crash.end.signal == SIGSEGV);
  CHECK(readable_stacks(crash.written, OwnCalls::keep_all).find("0x0, where there is no code\n  miniray::") !=
        std::string::npos);
}

TEST_CASE("a handler that raises its signal again, as that of Python does, is left out" * doctest::skip(sanitized)) {
  const Crash crash = crash_of([] {
    static struct sigaction ours;
    struct sigaction theirs{};
    theirs.sa_handler = [](int number) {
      sigaction(number, &ours, nullptr);
      raise(number);
    };
    theirs.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &theirs, &ours);
    int* volatile nothing = nullptr;
    return crash_in_a_function(nothing);
  });
  CHECK(crash.end.signal == SIGSEGV);
  CHECK(readable_stacks(crash.written, OwnCalls::keep_all)
            .starts_with("C++ stack at SIGSEGV:\n  miniray::(anonymous namespace)::crash_in_a_function(int*)"));
}

TEST_CASE("a stack overflow leaves a stack too") {
  const Crash crash = crash_of([] {
    char top = 0;
    return sink_through_the_stack(&top);
  });
  CHECK(crash.end.signal == SIGSEGV);
  CHECK(crash.written.find("C++ stack at SIGSEGV") == 0);
}

TEST_CASE("a process that is asked for its stack writes it and goes on" * doctest::skip(under_tsan)) {
  const Crash crash = crash_of([] {
    errno = 42;
    raise(stack_signal());
    return errno;
  });
  CHECK(crash.end.exit_code == 42);
  CHECK(crash.written.find("C++ stack:\n") == 0);
}

TEST_CASE("other code can find the descriptor that stacks go to") {
  CHECK(crash_descriptor() == -1);
  CHECK(crash_of([] { return crash_descriptor() >= 0 ? 0 : 1; }).end.exit_code == 0);
}

TEST_CASE("the state of a process: running, stopped, ended, gone") {
  CHECK(process_state(getpid()).starts_with("running, after "));
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, WUNTRACED) == child);
  CHECK(process_state(child).starts_with("stopped, after 0."));
  kill(child, SIGCONT);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(process_state(child).starts_with("ending"));
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(process_state(child) == "gone");
}

TEST_CASE("the count of out-of-memory kills never decreases") {
  const std::uint64_t before = out_of_memory_kills();
  CHECK(out_of_memory_kills() >= before);
}

}  // namespace miniray
