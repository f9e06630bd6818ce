// Starts processes and finds out how they end. Every child leads a process group of its own and holds a lifeline: a
// socket whose other end the parent holds. When the parent ends, for whatever reason, the kernel kills the group.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace miniray {

/// Functions that fork_process() calls around the fork, for the runtime of a language such as Python. Each may be
/// empty, and none may throw.
struct ForkHooks {
  std::function<void()> before, after_in_parent, after_in_child;
};

/// Forks a child that runs child_main and exits with its result. Of this process's Fds, the child keeps only `keep`.
/// Throws SystemError.
pid_t fork_process(std::span<const int> keep, const ForkHooks& hooks, const std::function<int()>& child_main);

/// Starts a program in a process group of its own. The program keeps the descriptors in `keep`. Its environment is this
/// process's, with the entries of `environment` in place of those of the same name: "NAME=value", or "NAME" for none.
/// Throws SystemError.
pid_t spawn_process(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                    std::span<const int> keep);

/// Starts a program in this process's own group, with these descriptors as its standard input, output and errors. It
/// keeps no other Fd. Throws SystemError.
pid_t spawn_in_group(const std::vector<std::string>& command, int input, int output, int errors);

/// Runs work in a child that has a copy of this process's memory, and waits for the child. A signal handler may call
/// it: nothing but the kernel takes part, no fork handler is run, and this process gets no SIGCHLD. The work may crash
/// or hang, and must not call what needs its thread's identity (raise, abort, locks). Returns whether the work returned
/// in time.
bool run_in_bare_child(int milliseconds_max, void (*work)(const void*), const void* argument);

/// Closes every descriptor of this process except the standard ones and those in `keep`. A long-lived child that shares
/// nothing else with its parent calls it.
void close_all_but(std::span<const int> keep);
void set_close_on_exec(int descriptor);
void name_this_process(const char* name);

/// Makes the kernel kill this process group when the other end of the lifeline closes, which happens at the latest when
/// the parent ends. Call it in the child. Throws SystemError.
void hold_lifeline(int lifeline);

/// Returns a descriptor that is readable once the process, which need not be a child, has ended; an invalid Fd if there
/// is no such process. Throws SystemError.
Fd watch_process(pid_t pid);

struct ExitStatus {
  bool known = true;  ///< false if other code in this process has reaped the child
  int exit_code = -1;
  int signal = 0;
  std::uint64_t peak_bytes = 0;
};

/// A child of this process. The owner reaps it once it has ended.
class ChildProcess {
 public:
  ChildProcess() = default;
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::optional<ExitStatus>& status() const { return status_; }
  /// Asks the kernel whether the process still runs, without reaping it.
  [[nodiscard]] bool running() const;
  /// Returns a descriptor that is readable once the process has ended. The first call opens it; this object owns it.
  int pidfd();
  /// Kills what remains of the process group, then waits for the process and reaps it.
  const ExitStatus& reap();
  /// Waits for a process that leads no group of its own, and reaps it.
  const ExitStatus& reap_alone();
  /// Sends a signal to the process. Returns false if there is no signal of this number.
  bool signal(int number) const;
  void signal_group(int number) const;

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
  std::optional<ExitStatus> status_;
};

}  // namespace miniray
