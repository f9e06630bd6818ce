// Runs a function in a forked child: for tests of what ends a process, or changes it for good.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <string>

namespace miniray {

/// How a child ended, and what it wrote to its standard error.
struct ChildEnd {
  int exit_code = -1;  ///< -1 unless it exited
  int signal = 0;      ///< 0 unless a signal killed it
  std::string said;
};

/// The child leads a process group of its own, and exits with what the function returns. An exception is exit code 99.
/// A child that takes longer than a minute is killed by SIGALRM.
template <class Function>
ChildEnd end_of_child(Function function) {
  constexpr unsigned patience_s = 60;
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM, SIGINT})
      signal(number, SIG_DFL);  // else the test program would report it
    const rlimit no_core{};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    alarm(patience_s);
    int code = 99;
    try {
      code = function();
    } catch (const std::exception& error) {
      dprintf(STDERR_FILENO, "an exception: %s\n", error.what());
    }
    _exit(code);
  }
  close(ends[1]);
  ChildEnd end;
  std::array<char, 4096> room{};
  for (ssize_t bytes = 1; bytes != 0;) {
    bytes = read(ends[0], room.data(), room.size());
    if (bytes > 0) end.said.append(room.data(), static_cast<std::size_t>(bytes));
    if (bytes < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

}  // namespace miniray
