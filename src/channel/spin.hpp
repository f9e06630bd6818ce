// Spins briefly before a sleep, because waking a sleeping process costs more than passing the message. The time adapts:
// a receiver whose messages come late soon stops spinning, and starts again when messages come quickly.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"
#include "base/system.hpp"

namespace miniray {

/// Returns how long to spin: `asked` if it is set, else MINIRAY_SPIN_US, else limits::spin_us, or 0 if this process may
/// use only one CPU.
int spin_budget_us(const std::optional<int>& asked);

class Spin {
 public:
  explicit Spin(int budget_us) : most_ns_(budget_us * 1000LL), budget_ns_(most_ns_) {}

  /// Calls attempt() until it returns true or the budget is spent. Returns whether attempt() returned true.
  template <class Attempt>
  bool until(Attempt attempt) {
    started_ns_ = most_ns_ > 0 ? now_ns() : 0;
    if (budget_ns_ == 0) return false;
    do {
      system::yield();  // if no other core is free, the peer needs this one
      if (attempt()) {
        budget_ns_ = most_ns_;
        return true;
      }
    } while (now_ns() - started_ns_ < budget_ns_);
    return false;
  }

  /// Called after the sleep that followed until(). A short sleep means that a little more spinning would have paid.
  void woke() {
    if (most_ns_ == 0) return;
    constexpr int wake_up_worth = 4;  // after a sleep of this many budgets, spinning would not have paid
    budget_ns_ = now_ns() - started_ns_ < wake_up_worth * most_ns_ ? most_ns_ : budget_ns_ / 2;
  }

 private:
  std::int64_t most_ns_, budget_ns_;
  std::int64_t started_ns_ = 0;
};

}  // namespace miniray
