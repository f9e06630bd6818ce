// Decides how often a dead worker or group may be restarted, and after what pause. It starts nothing itself, and the
// caller passes the time.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "miniray/export.hpp"
#include "miniray/limits.hpp"
#include "miniray/seconds.hpp"

namespace MINIRAY_API miniray {

struct RestartPolicy {
  /// The number of restarts within window_s. 0: no restart.
  int max_restarts = limits::restarts_max;
  /// Older restarts do not count.
  Seconds window_s = limits::restart_window_ms / 1000.0;
  /// The pause before a restart. It doubles with each restart within window_s, up to backoff_max_s.
  Seconds backoff_s = limits::restart_pause_ms / 1000.0;
  Seconds backoff_max_s = limits::restart_pause_max_ms / 1000.0;
  /// If true, the workers of a lost node may be started on other nodes.
  bool other_nodes = false;
};

/// Counts the restarts of one worker or one group.
class RestartBudget {
 public:
  /// Throws UsageError if the policy is not valid.
  explicit RestartBudget(const RestartPolicy& policy);

  /// Asks for a restart at the time now_s, on any clock that only goes forward. Returns the pause before the restart,
  /// in seconds; nullopt if the policy refuses.
  [[nodiscard]] std::optional<double> take(double now_s);
  /// Returns how many restarts were granted.
  [[nodiscard]] int restarts() const { return restarts_; }
  /// Returns a text for people: "restart 2 of 3 within 60 s".
  [[nodiscard]] std::string describe() const;
  /// Returns why the last restart was refused, and what to change.
  [[nodiscard]] std::string refusal() const;

 private:
  RestartPolicy policy_;
  std::deque<double> times_s_;  // when the restarts within the window were
  int restarts_ = 0;
};

}  // namespace miniray
