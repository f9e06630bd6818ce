// A worker's process on this machine. The current process forks or spawns it and reaps it. When the current process
// ends, the kernel kills the worker's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "miniray/worker.hpp"
#include "worker/worker_process.hpp"

namespace miniray {

class LocalProcess : public WorkerProcess {
 public:
  /// Forks this process. The child keeps only the descriptors in `keep`, and exits with the result of child_main.
  /// Throws UsageError if this process has a live CUDA context, and SystemError if the fork fails.
  static std::unique_ptr<LocalProcess> fork(const ForkOptions& options, std::span<const int> keep,
                                            const std::function<int()>& child_main);
  /// Starts a program that calls run_spawned(). `setting` gets the descriptors of the lifeline and of the crash file,
  /// and returns the variable MINIRAY_SPAWNED for the program's environment ("NAME=value"). Throws SystemError.
  static std::unique_ptr<LocalProcess> spawn(const std::vector<std::string>& command, std::span<const int> keep,
                                             const std::function<std::string(int, int)>& setting);
  /// Kills the process if it still runs.
  ~LocalProcess() override;

  [[nodiscard]] pid_t pid() const override { return process_.pid(); }
  bool running() override { return process_.running(); }
  int fileno() override { return process_.pidfd(); }
  bool is_gone() override { return !process_.running(); }
  bool signal(int number) override;
  [[nodiscard]] bool can_be_killed() const override { return true; }
  std::string stack(const std::function<void()>& on_interrupt) override;
  /// The two halves of stack(), for a caller that must not wait between them.
  void ask_for_stack();
  [[nodiscard]] std::string take_stack();
  /// Returns whether take_stack() would return a whole stack. What the worker has not begun to write counts as whole.
  [[nodiscard]] bool stack_is_written() const;
  const DeathCertificate& ending() override;
  [[nodiscard]] int news_within_ms() const override { return limits::exit_wait_ms; }
  void drop_descriptors() override;

 private:
  // What ties the process to this one. It is made first, because the process inherits the other end of the lifeline and
  // the crash file.
  struct Ties {
    Fd lifeline;    // closing it kills the worker
    Fd crash_file;  // the worker writes its stack there if it crashes
  };
  LocalProcess(pid_t pid, Ties ties);
  static std::pair<Ties, Fd> make_ties();

  ChildProcess process_;
  Ties ties_;
  std::uint64_t memory_kills_;  // out_of_memory_kills() at the start
  std::uint64_t generation_;
  bool killed_here_ = false;
  std::optional<DeathCertificate> ending_;
};

}  // namespace miniray
