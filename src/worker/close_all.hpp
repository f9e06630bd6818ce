// Ends workers together, whatever they are doing: politely, then by an interrupt, then surely.
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
  double grace_s = grace_ms(limits::close_grace_ms) / 1000.0;  ///< of Closing::finish
  /// Another thread may raise it while this waits; null if none does.
  const std::atomic<Closing>* urgency = nullptr;
  /// How long to wait for news of workers on other machines that were killed; by default what each says.
  std::optional<int> news_within_ms = {};
  /// Workers of which no news came stay as they are, for abandon(). Otherwise run() abandons them.
  bool keeps_silent = false;
};

class Closer {
 public:
  /// Tells the worker to end. UsageError if another thread is using it.
  Closer(Worker::State& worker, const CloseOptions& options);
  /// Tells all workers to end. Those that another thread is using are left alone.
  Closer(std::span<Worker* const> workers, const CloseOptions& options);
  /// Returns when all have ended or were killed. An interrupt (what on_interrupt throws) makes the rest more urgent,
  /// and is thrown at last.
  void run();
  /// For workers that are gone: kills what is left of them, and never waits. Returns true once all have ended, or no
  /// more news of them can be expected.
  [[nodiscard]] bool step();
  /// Gives back what is left of workers of which no news came.
  void abandon();

 private:
  [[nodiscard]] Closing how() const;
  void run_stages();
  void wait(const Deadline& deadline);
  void wait_for_the_dead();
  [[nodiscard]] Deadline news_deadline() const;
  [[nodiscard]] bool some_can_be_killed() const;
  void look();

  std::vector<Worker::State*> left_;  // that have not ended
  CloseOptions options_;
  Closing begun_ = Closing::finish;  // the way in which it goes on now
  Deadline cut_at_ = Deadline::in_ms(limits::idle_grace_ms);
  std::optional<Deadline> news_until_;  // of step(), once they have been killed
};

}  // namespace miniray
