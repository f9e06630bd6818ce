// How often what died may be started again, and after what pause. It decides, and does nothing; times are passed in.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "miniray/export.hpp"
#include "miniray/seconds.hpp"

namespace MINIRAY_API miniray {

struct RestartPolicy {
  int max_restarts = 3;        ///< within window_s; 0: never
  Seconds window_s = 60;       ///< restarts that are longer ago count no more
  Seconds backoff_s = 0.5;     ///< the pause before a restart; twice as long for each that the window already holds
  Seconds backoff_max_s = 30;  ///< and never longer than this
  /// What was on a node that is gone may go to the nodes that are left.
  bool other_nodes = false;
};

/// The restarts of one worker, or of one group.
class RestartBudget {
 public:
  /// Throws UsageError if the policy cannot be right.
  explicit RestartBudget(const RestartPolicy& policy);

  /// One more is wanted at this time, on any clock that only goes forward. The pause before it, in seconds; nothing if
  /// the policy refuses.
  [[nodiscard]] std::optional<double> take(double now_s);
  /// All that were granted.
  [[nodiscard]] int restarts() const { return restarts_; }
  /// For people: "restart 2 of 3 within 60 s".
  [[nodiscard]] std::string describe() const;
  /// For people: why the last one was refused, and what to change.
  [[nodiscard]] std::string refusal() const;

 private:
  RestartPolicy policy_;
  std::deque<double> times_s_;  // of those in the window
  int restarts_ = 0;
};

}  // namespace miniray
