// Closes workers together, whatever they are doing: a Closer lets them finish, then interrupts them, then kills them.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/grace.hpp"
#include "miniray/worker.hpp"

namespace miniray {

struct CloseOptions {
  Closing how = Closing::finish;
  double grace_s = grace_ms(limits::close_grace_ms) / 1000.0;  ///< how long Closing::finish waits
  /// Another thread may raise this value to make a running close more urgent. It may be null.
  const std::atomic<Closing>* urgency = nullptr;
  /// How long to wait until the servers of killed workers on other machines confirm their end. By default, it is what
  /// WorkerProcess::news_within_ms() returns for each worker.
  std::optional<int> news_within_ms = {};
  /// If true, run() keeps the workers whose end no server has confirmed. The caller then has to call drop_rest().
  bool keep_unconfirmed = false;
};

/// Closes some workers. It does not own them; they must not be moved or destroyed before it is done.
class Closer {
 public:
  /// Closes the stream to the worker. Throws UsageError if another thread is using the worker.
  Closer(Worker::State& worker, const CloseOptions& options);
  /// Closes the streams to all workers. It skips workers that another thread is using.
  Closer(std::span<Worker* const> workers, const CloseOptions& options);
  /// Returns when all workers have ended or were killed. If on_interrupt throws during the wait, the rest is closed in
  /// a more urgent way, and run() throws that exception when it is done.
  void run();
  /// Kills the workers and returns without waiting. Call it again until it returns true: then all workers have ended,
  /// or no server will confirm their end.
  [[nodiscard]] bool step();
  /// Drops the workers whose end no server has confirmed.
  void drop_rest();

 private:
  [[nodiscard]] Closing how() const;
  void run_stages();
  void wait(const Deadline& deadline);
  void wait_for_killed();
  [[nodiscard]] Deadline news_deadline() const;
  [[nodiscard]] bool some_can_be_killed() const;
  void finish_ended();

  std::vector<Worker::State*> left_;  // the workers that have not ended
  CloseOptions options_;
  Closing stage_ = Closing::finish;
  Deadline cut_at_ = Deadline::in_ms(limits::idle_grace_ms);  // when workers that still send messages are cut off
  std::optional<Deadline> news_until_;                        // set when step() has killed the workers
};

}  // namespace miniray
