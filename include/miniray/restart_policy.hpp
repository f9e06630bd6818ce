// Decides how often a dead worker or group may be restarted, and after what pause. It starts nothing itself, and the
// caller passes the time.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "miniray/export.hpp"
#include "miniray/seconds.hpp"

namespace MINIRAY_API miniray {

struct RestartPolicy {
  int max_restarts = 3;        ///< the number of restarts within window_s; 0: no restart
  Seconds window_s = 60;       ///< older restarts do not count
  Seconds backoff_s = 0.5;     ///< the pause before a restart; it doubles with each restart within window_s
  Seconds backoff_max_s = 30;  ///< the longest pause
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
