#include "base/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/crash.hpp"
#include "base/log.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace miniray {
namespace {

[[noreturn]] void run_child(const ForkHooks& hooks, const std::function<int()>& child_main) noexcept {
  if (hooks.after_in_child) hooks.after_in_child();
  setpgid(0, 0);
  // The child's group is in the background of its terminal. With these ignored, its output is printed and its reads
  // from the terminal fail; otherwise the kernel would stop the process.
  signal(SIGTTOU, SIG_IGN);
  signal(SIGTTIN, SIG_IGN);
  int code = EXIT_FAILURE;
  try {
    code = child_main();
  } catch (const std::exception& error) {  // must not unwind further: below is a copy of the parent's code
    log(LogLevel::error, "process " + std::to_string(getpid()) + " ends: " + error.what());
  }
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);  // not exit(): static destructors and atexit handlers are the parent's
}

bool is_variable(const char* entry, const std::string& assignment) {
  return std::string_view(entry).starts_with(assignment.substr(0, assignment.find('=')) + "=");
}

sigset_t stack_signal_alone() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, stack_signal());
  return set;
}

// Returns the arguments for exec. They point into `command`.
std::vector<char*> as_arguments(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return arguments;
}

}  // namespace

pid_t fork_process(std::span<const int> keep, const ForkHooks& hooks, const std::function<int()>& child_main) {
  // The child would get a copy of buffered output, and print it a second time.
  std::cout.flush();
  std::fflush(nullptr);
  const KeepAcrossFork kept(keep);
  if (hooks.before) hooks.before();
  // The signal that asks for a stack kills a process without a handler, so it stays blocked until the child has one.
  sigset_t blocked = stack_signal_alone(), before;
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const pid_t pid = fork();
  if (pid == 0) run_child(hooks, child_main);
  const int error_number = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (hooks.after_in_parent) hooks.after_in_parent();
  if (pid < 0) throw SystemError("start a process (is the limit on processes, `ulimit -u`, reached?)", error_number);
  setpgid(pid, pid);  // parent and child both do this, since either may run first; the second call may fail
  return pid;
}

pid_t spawn_process(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                    std::span<const int> keep) {
  MINIRAY_CHECK(!command.empty());
  const std::vector<char*> arguments = as_arguments(command);
  std::vector<char*> variables;
  variables.reserve(environment.size() + 64);
  for (const std::string& assignment : environment)
    if (assignment.find('=') != std::string::npos) variables.push_back(const_cast<char*>(assignment.c_str()));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& assignment : environment) replaced = replaced || is_variable(*entry, assignment);
    if (!replaced) variables.push_back(*entry);
  }
  variables.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  for (const int number : keep) posix_spawn_file_actions_adddup2(&actions, number, number);  // clears close-on-exec
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t mask = stack_signal_alone(), now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  sigorset(&mask, &mask, &now);
  posix_spawnattr_setsigmask(&attributes, &mask);
  pid_t pid = -1;
  const int error_number =
      posix_spawnp(&pid, command[0].c_str(), &actions, &attributes, arguments.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error_number != 0) throw SystemError("start the program " + command[0], error_number);
  return pid;
}

pid_t spawn_in_group(const std::vector<std::string>& command, int input, int output, int errors) {
  MINIRAY_CHECK(!command.empty());
  const std::vector<char*> arguments = as_arguments(command);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  pid_t pid = -1;
  const int error_number = posix_spawnp(&pid, command[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error_number != 0) throw SystemError("start the program " + command[0], error_number);
  return pid;
}

bool run_in_bare_child(int milliseconds_max, void (*work)(const void*), const void* argument) {
  const auto child = static_cast<pid_t>(syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) {
    work(argument);
    _exit(EXIT_SUCCESS);
  }
  if (child < 0) return false;
  const Deadline deadline = Deadline::in_ms(milliseconds_max);
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG | __WALL);
    if (ended == child) return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
    if (ended < 0 && errno != EINTR) return false;  // other code in this process has reaped it
    if (deadline.passed()) break;
    system::sleep_ns(1'000'000);
  }
  kill(child, SIGKILL);
  while (waitpid(child, &status, __WALL) < 0 && errno == EINTR) {
  }
  return false;
}

void close_all_but(std::span<const int> keep) {
  std::vector<unsigned> kept(keep.begin(), keep.end());
  std::ranges::sort(kept);
  unsigned first = STDERR_FILENO + 1;
  for (const unsigned number : kept) {
    if (number > first) close_range(first, number - 1, 0);
    first = std::max(first, number + 1);
  }
  close_range(first, ~0U, 0);
}

void set_close_on_exec(int descriptor) { fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

void name_this_process(const char* name) { prctl(PR_SET_NAME, name); }

void hold_lifeline(int lifeline) {
  // SIGKILL goes to the whole group, so that the processes which this one starts end too.
  const bool held = fcntl(lifeline, F_SETSIG, SIGKILL) == 0 && fcntl(lifeline, F_SETOWN, -getpgrp()) == 0 &&
                    fcntl(lifeline, F_SETFL, fcntl(lifeline, F_GETFL) | O_ASYNC) == 0;
  if (!held) throw SystemError("tie a process to its parent", errno);
  pollfd hung_up{lifeline, POLLIN, 0};
  if (poll(&hung_up, 1, 0) > 0) _exit(EXIT_FAILURE);  // the parent ended before the signal was set up
  fcntl(lifeline, F_SETFD, 0);                        // stays open across exec, so the lifeline holds there too
}

bool ChildProcess::running() const {
  if (pid_ < 0 || status_) return false;
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

Fd watch_process(pid_t pid) {
  const auto number = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (number < 0 && errno != ESRCH) throw SystemError("watch process " + std::to_string(pid), errno);
  return number < 0 ? Fd() : Fd(number);
}

int ChildProcess::pidfd() {
  MINIRAY_CHECK(pid_ > 0, pid_);
  if (!pidfd_.valid()) {
    pidfd_ = watch_process(pid_);
    if (!pidfd_.valid()) throw SystemError("watch process " + std::to_string(pid_), ESRCH);
  }
  return pidfd_.get();
}

const ExitStatus& ChildProcess::reap() {
  if (status_) return *status_;
  MINIRAY_CHECK(pid_ > 0, pid_);
  // The group is signalled before the reaping: as long as its leader is a zombie, no other group can have its number.
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0) signal_group(SIGKILL);
  return reap_alone();
}

const ExitStatus& ChildProcess::reap_alone() {
  if (status_) return *status_;
  int raw = 0;
  rusage usage{};
  pid_t reaped = -1;
  do {
    reaped = wait4(pid_, &raw, 0, &usage);
  } while (reaped < 0 && errno == EINTR);
  ExitStatus status;
  status.known = reaped == pid_;
  if (status.known && WIFEXITED(raw)) status.exit_code = WEXITSTATUS(raw);
  if (status.known && WIFSIGNALED(raw)) status.signal = WTERMSIG(raw);
  status.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  status_ = status;
  pidfd_.reset();
  return *status_;
}

bool ChildProcess::signal(int number) const {
  return pid_ <= 0 || status_ || kill(pid_, number) == 0 || errno != EINVAL;
}

void ChildProcess::signal_group(int number) const {
  if (pid_ > 0 && !status_) kill(-pid_, number);
}

}  // namespace miniray
