// A worker's process on this machine: forked or spawned by this one, tied to it, and reaped by it.
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
  /// A fork of this process that keeps only `keep` of our descriptors and exits with what child_main returns. Throws
  /// UsageError where a fork cannot work.
  static std::unique_ptr<LocalProcess> fork(const ForkOptions& options, std::span<const int> keep,
                                            const std::function<int()>& child_main);
  /// A program that calls run_spawned. `setting` makes its MINIRAY_SPAWNED from the lifeline and the crash file.
  static std::unique_ptr<LocalProcess> spawn(const std::vector<std::string>& command, std::span<const int> keep,
                                             const std::function<std::string(int, int)>& setting);
  /// Ends the process if it still runs.
  ~LocalProcess() override;

  [[nodiscard]] pid_t pid() const override { return process_.pid(); }
  bool running() override { return process_.running(); }
  int fileno() override { return process_.pidfd(); }
  bool is_gone() override { return !process_.running(); }
  bool signal(int number) override;
  [[nodiscard]] bool can_be_killed() const override { return true; }
  std::string stack(const std::function<void()>& on_interrupt) override;
  /// The two halves of it, for who must not wait in between.
  void ask_for_stack();
  [[nodiscard]] std::string take_stack();
  const DeathCertificate& ending() override;
  [[nodiscard]] int news_within_ms() const override { return limits::exit_wait_ms; }
  void forget() override;

 private:
  // Made before the process, told to it by descriptors.
  struct Ties {
    Fd lifeline;    // its closing ends the worker
    Fd crash_file;  // the worker writes its stack there, should it crash
    std::uint64_t memory_kills;
  };
  LocalProcess(pid_t pid, Ties ties) : process_(pid), ties_(std::move(ties)), generation_(process_generation()) {}
  static std::pair<Ties, Fd> make_ties();

  ChildProcess process_;
  Ties ties_;
  std::uint64_t generation_;
  bool killed_here_ = false;
  std::optional<DeathCertificate> ending_;
};

}  // namespace miniray
