#include "miniray/restart_policy.hpp"

#include <algorithm>
#include <cmath>

#include "base/error_text.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

void check(double value, const char* name, bool zero_too) {
  if (std::isfinite(value) && (zero_too ? value >= 0 : value > 0)) return;
  throw UsageError(std::string(name) + " is a number of seconds" + (zero_too ? ", 0 or more" : ", more than 0") +
                   ", not " + number_text(value));
}

}  // namespace

RestartBudget::RestartBudget(const RestartPolicy& policy) : policy_(policy) {
  if (policy.max_restarts < 0)
    throw UsageError("max_restarts is 0 or more, not " + std::to_string(policy.max_restarts));
  check(policy.window_s, "window_s", false);
  check(policy.backoff_s, "backoff_s", true);
  check(policy.backoff_max_s, "backoff_max_s", true);
}

std::optional<double> RestartBudget::take(double now_s) {
  while (!times_s_.empty() && times_s_.front() <= now_s - policy_.window_s) times_s_.pop_front();
  if (times_s_.size() >= static_cast<std::size_t>(policy_.max_restarts)) return std::nullopt;
  const double pause_s = policy_.backoff_s * std::exp2(static_cast<double>(times_s_.size()));
  times_s_.push_back(now_s);
  ++restarts_;
  return std::min<double>(pause_s, policy_.backoff_max_s);
}

std::string RestartBudget::describe() const {
  return "restart " + std::to_string(times_s_.size()) + " of " + std::to_string(policy_.max_restarts) + " within " +
         number_text(policy_.window_s) + " s";
}

std::string RestartBudget::refusal() const {
  if (policy_.max_restarts == 0) return "The policy allows no restart (max_restarts=0)";
  return "The policy allows no more: " + std::to_string(times_s_.size()) +
         (times_s_.size() == 1 ? " restart" : " restarts") + " within " + number_text(policy_.window_s) +
         " s (max_restarts, window_s)";
}

}  // namespace miniray
