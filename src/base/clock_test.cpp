#include "base/clock.hpp"

#include <doctest/doctest.h>

#include <limits>

namespace miniray {

TEST_CASE("the clock never goes back") {
  std::int64_t last = now_ns();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = now_ns();
    REQUIRE(now >= last);
    last = now;
  }
}

TEST_CASE("a deadline that is never") {
  for (const Deadline& never : {Deadline::never(), Deadline::in_seconds({})}) {
    CHECK(never.is_never());
    CHECK_FALSE(never.passed());
    CHECK_FALSE(never.seconds_left().has_value());
    CHECK(never.poll_ms(1000) == 1000);
  }
}

TEST_CASE("a deadline passes when its time has come") {
  const Deadline now = Deadline::in_ms(0);
  CHECK(now.passed());
  CHECK_FALSE(now.is_never());
  CHECK(now.seconds_left() == 0.0);
  CHECK(now.poll_ms(1000) == 0);
  const Deadline later = Deadline::in_ms(3'600'000);
  CHECK_FALSE(later.passed());
  CHECK(*later.seconds_left() > 0);
  CHECK(*later.seconds_left() <= 3600);
}

TEST_CASE("the time left is rounded up for poll, and is at most a slice") {
  CHECK(Deadline::in_ms(3'600'000).poll_ms(250) == 250);
  CHECK(Deadline::in_seconds(1e-5).poll_ms(1000) <= 1);
  const Deadline soon = Deadline::in_ms(3);
  for (int left_ms = 3; left_ms > 0; left_ms = soon.poll_ms(1000)) CHECK(left_ms <= 3);
  CHECK(soon.passed());  // poll_ms() was 0, and so it was not a moment early
}

TEST_CASE("seconds that are negative, infinite or NaN") {
  CHECK(Deadline::in_seconds(-1.0).passed());
  CHECK(Deadline::in_seconds(-std::numeric_limits<double>::infinity()).passed());
  for (const double endless : {1e300, std::numeric_limits<double>::infinity()}) {
    const Deadline far = Deadline::in_seconds(endless);
    CHECK_FALSE(far.passed());
    CHECK(*far.seconds_left() > 1e9);
    CHECK(far.poll_ms(1000) == 1000);
  }
  CHECK_THROWS_WITH_AS((void)Deadline::in_seconds(std::nan("")), doctest::Contains("the time-out is NaN"), UsageError);
}

}  // namespace miniray
