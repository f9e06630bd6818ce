// Starting processes and learning how they end. Every child leads a process group of its own and holds a lifeline:
// a socket whose other end is the parent. When the parent is gone, however it went, the kernel kills the group.
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

/// What a language runtime must do around a fork. Each may be empty; none may throw.
struct ForkHooks {
  std::function<void()> before, after_in_parent, after_in_child;
};

/// Runs child_main in a forked child, which keeps only `keep` of our descriptors, and exits with what it returns.
pid_t fork_process(std::span<const int> keep, const ForkHooks& hooks, const std::function<int()>& child_main);

/// Starts a program that keeps `keep`. `environment` entries ("NAME=value") replace those of the same name.
pid_t spawn_process(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                    std::span<const int> keep);

/// Starts a program in this process's own group, with these descriptors for its standard input, output and errors.
/// It keeps none of the others.
pid_t spawn_in_group(const std::vector<std::string>& command, int input, int output, int errors);

/// Closes every descriptor but the standard ones and these: for a child that lives long and shares nothing.
void close_all_but(std::span<const int> keep);
void set_close_on_exec(int descriptor);
void name_this_process(const char* name);

/// In the child: from now on the end of the parent is the end of this process group.
void hold_lifeline(int lifeline);

struct ExitStatus {
  bool known = true;  ///< false if somebody else reaped the child
  int exit_code = -1;
  int signal = 0;
  std::uint64_t peak_bytes = 0;
};

/// A child of this process, to be reaped once.
class ChildProcess {
 public:
  ChildProcess() = default;
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::optional<ExitStatus>& status() const { return status_; }
  /// Whether it still runs; asks the kernel, reaps nothing.
  [[nodiscard]] bool running() const;
  /// Readable once the process has ended; made on first use.
  int pidfd();
  /// Kills what is left of its process group, then reaps it. It must have ended.
  const ExitStatus& reap();
  /// Reaps a process that leads no group of its own.
  const ExitStatus& reap_alone();
  /// To the process, or to its whole group. False if there is no such signal.
  bool signal(int number) const;
  void signal_group(int number) const;

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
  std::optional<ExitStatus> status_;
};

}  // namespace miniray
