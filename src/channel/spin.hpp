// Spins briefly before a sleep, because waking a sleeping process costs more than passing the message. The time adapts:
// a receiver whose messages come late soon stops spinning, and starts again when messages come quickly.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"
#include "base/system.hpp"
#include "miniray/limits.hpp"

namespace miniray {

/// Returns how long to spin: `asked` if it is set, else MINIRAY_SPIN_US, else limits::spin_us, or 0 if this process may
/// use only one CPU.
int spin_budget_us(const std::optional<int>& asked);

class Spin {
 public:
  explicit Spin(int budget_us) : most_ns_(budget_us * 1000LL), budget_ns_(most_ns_) {}

  /// Calls look() often and attempt() now and then, until one of them returns true or the budget is spent. look()
  /// should be cheap: no system call. Returns whether one of them returned true.
  template <class Look, class Attempt>
  bool until(Look look, Attempt attempt) {
    if (budget_ns_ > 0 && looks_eagerly() && looks(limits::eager_looks, look)) return came();
    return until([&] { return looks(limits::looks_per_yield, look) || attempt(); });
  }
  template <class Attempt>
  bool until(Attempt attempt) {
    started_ns_ = most_ns_ > 0 ? now_ns() : 0;
    if (budget_ns_ == 0) return false;
    std::int64_t now = started_ns_;
    do {
      const std::int64_t before = now;
      system::yield();  // if no other core is free, the peer needs this one
      if (now_ns() - before > limits::others_ran_ns) crowded_ = limits::crowded_waits;
      if (attempt()) return came();
      now = now_ns();
    } while (now - started_ns_ < budget_ns_);
    return false;
  }

  /// Called in place of until(), if spinning cannot help.
  void put_off() { started_ns_ = most_ns_ > 0 ? now_ns() : 0; }

  /// Called after the sleep that followed until(). A short sleep means that a little more spinning would have paid.
  void woke() {
    if (most_ns_ == 0) return;
    budget_ns_ = now_ns() - started_ns_ < limits::wake_up_worth_spins * most_ns_ ? most_ns_ : budget_ns_ / 2;
  }

 private:
  // A yield is a system call, which takes longer than a message needs there and back. So the first looks come without
  // one, unless a yield has lately let another process run: then this process shares its core.
  bool looks_eagerly() {
    if (crowded_ > 0) --crowded_;
    return crowded_ == 0;
  }
  template <class Look>
  static bool looks(int count, Look look) {
    for (int i = 0; i < count; ++i) {
      if (look()) return true;
      system::pause();
    }
    return false;
  }
  bool came() {
    budget_ns_ = most_ns_;
    return true;
  }

  std::int64_t most_ns_, budget_ns_;
  std::int64_t started_ns_ = 0;
  int crowded_ = 0;  // this many waits begin with a yield
};

}  // namespace miniray
