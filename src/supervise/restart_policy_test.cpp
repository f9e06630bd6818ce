#include "miniray/restart_policy.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "miniray/error.hpp"

namespace miniray {

TEST_CASE("so many restarts within the window, each after a longer pause") {
  RestartBudget budget({.max_restarts = 3, .window_s = 60, .backoff_s = 0.5});
  CHECK(budget.take(100) == 0.5);
  CHECK(budget.describe() == "restart 1 of 3 within 60 s");
  CHECK(budget.take(110) == 1.0);
  CHECK(budget.take(120) == 2.0);
  CHECK(budget.take(130) == std::nullopt);
  CHECK(budget.take(159.9) == std::nullopt);
  CHECK(budget.refusal() == "The policy allows no more: 3 restarts within 60 s (max_restarts, window_s)");
  CHECK(budget.take(160) == 2.0);  // the first is as old as the window
  CHECK(budget.take(160) == std::nullopt);
  CHECK(budget.restarts() == 4);
}

TEST_CASE("a quiet window makes the pause short again, and no pause is longer than the limit") {
  RestartBudget budget({.max_restarts = 2000, .window_s = 10, .backoff_s = 1, .backoff_max_s = 5});
  CHECK(budget.take(0) == 1);
  CHECK(budget.take(0) == 2);
  CHECK(budget.take(0) == 4);
  for (int i = 0; i < 1500; ++i) CHECK(budget.take(1) == 5);
  CHECK(budget.take(11) == 1);
  RestartBudget at_once({.backoff_s = 0});
  CHECK(at_once.take(0) == 0);
  CHECK(at_once.take(0) == 0);
}

TEST_CASE("no restart at all, and policies that cannot be right") {
  RestartBudget never({.max_restarts = 0});
  CHECK(never.take(0) == std::nullopt);
  CHECK(never.refusal() == "The policy allows no restart (max_restarts=0)");
  CHECK_THROWS_WITH_AS(RestartBudget({.max_restarts = -1}), "max_restarts is 0 or more, not -1", UsageError);
  CHECK_THROWS_WITH_AS(RestartBudget({.window_s = 0}), "window_s is a number of seconds, more than 0, not 0",
                       UsageError);
  CHECK_THROWS_AS(RestartBudget({.backoff_s = -1}), UsageError);
  CHECK_THROWS_AS(RestartBudget({.backoff_max_s = std::numeric_limits<double>::quiet_NaN()}), UsageError);
}

}  // namespace miniray
