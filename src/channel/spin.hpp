// Brief spinning before a sleep: waking a sleeping process costs more than carrying the message. How long adapts to
// whether it pays: a receiver whose messages come late soon stops spinning, and starts again when they come quickly.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"
#include "base/system.hpp"

namespace miniray {

/// What was asked for; else MINIRAY_SPIN_US; else the limit, where there is a second core to spin on.
int spin_budget_us(const std::optional<int>& asked);

class Spin {
 public:
  explicit Spin(int budget_us) : most_ns_(budget_us * 1000LL), budget_ns_(most_ns_) {}

  /// Calls attempt() until it returns true or the budget is spent; says whether it did.
  template <class Attempt>
  bool until(Attempt attempt) {
    started_ns_ = most_ns_ > 0 ? now_ns() : 0;
    if (budget_ns_ == 0) return false;
    do {
      system::yield();  // where no second core is free, the peer needs this one
      if (attempt()) {
        budget_ns_ = most_ns_;
        return true;
      }
    } while (now_ns() - started_ns_ < budget_ns_);
    return false;
  }

  /// The sleep that followed is over.
  void woke() {
    if (most_ns_ == 0) return;
    constexpr int wake_up_worth = 4;  // a sleep this many budgets long would not have been worth spinning through
    budget_ns_ = now_ns() - started_ns_ < wake_up_worth * most_ns_ ? most_ns_ : budget_ns_ / 2;
  }

 private:
  std::int64_t most_ns_, budget_ns_;
  std::int64_t started_ns_ = 0;
};

}  // namespace miniray
