#include "launch/launch_protocol.hpp"

#include <doctest/doctest.h>

#include "base/system.hpp"
#include "miniray/error.hpp"
#include "tests/wait_until.hpp"

namespace miniray {

TEST_CASE("a stream gives out lines, bytes and the rest") {
  auto [a, b] = system::socket_pair();
  LineStream here(std::move(a)), there(std::move(b));
  CHECK(here.fill());
  CHECK_FALSE(here.take_line().has_value());
  CHECK_THROWS_AS((void)here.wait_for_line(1), EndOfStream);  // silence counts as the end
  there.write("one\n\ntwo\nbytesthr");
  CHECK(there.flush());
  CHECK(here.fill());
  CHECK(here.take_line() == "one");
  CHECK(here.take_line() == "");
  CHECK(here.take_line() == "two");
  CHECK(here.wait_for_bytes(5, 10'000) == "bytes");
  CHECK_FALSE(here.take_line().has_value());
  there.write("ee\nfour");
  CHECK(there.flush());
  there.close_output();
  CHECK(here.wait_for_line(10'000) == "three");
  CHECK_THROWS_AS((void)here.wait_for_line(10'000), EndOfStream);
  CHECK(here.ended());
  CHECK(here.take_rest() == "four");
  CHECK(here.unread_bytes() == 0);
}

TEST_CASE("a slow reader does not block the writer, and gets every line") {
  auto [a, b] = system::socket_pair();
  LineStream here(std::move(a)), there(std::move(b));
  constexpr int lines = 200'000;
  for (int i = 0; i < lines; ++i) there.write("line " + std::to_string(i) + "\n");
  int seen = 0;
  for (const Patience patience("the last line"); seen < lines; patience.check()) {
    REQUIRE(there.flush());
    REQUIRE(here.fill());
    while (const auto line = here.take_line()) REQUIRE(*line == "line " + std::to_string(seen++));
  }
  CHECK(there.unwritten_bytes() == 0);
}

}  // namespace miniray
