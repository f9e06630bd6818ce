#include "launch/log_lines.hpp"

#include <doctest/doctest.h>

namespace miniray {

TEST_CASE("log lines get the name of the server") {
  LogLines log(100);
  CHECK(log.take("one", 0) == "miniray worker-server: one\n");
  CHECK(log.take("two\nthree\n", 100) == "miniray worker-server: two\nminiray worker-server: three\n");
}

TEST_CASE("log lines are dropped while too much is unwritten, and their number is said afterwards") {
  LogLines log(100);
  CHECK(log.take_count(0).empty());
  CHECK(log.take("one", 101).empty());
  CHECK(log.take_count(101).empty());
  CHECK(log.take_count(100) ==
        "miniray worker-server: 1 line of this log was dropped, because the cluster had not read those before it\n");
  CHECK(log.take_count(0).empty());
  CHECK(log.take("two\nthree", 101).empty());
  CHECK(log.take("four", 101).empty());
  CHECK(log.take("five", 0) ==
        "miniray worker-server: 3 lines of this log were dropped, because the cluster had not read those before them\n"
        "miniray worker-server: five\n");
}

}  // namespace miniray
