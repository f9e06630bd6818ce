#include "worker/pending_limits.hpp"

#include <doctest/doctest.h>

namespace miniray {

TEST_CASE("the address with the most connections loses its oldest one") {
  PendingLimits limits(6, 4);
  CHECK_FALSE(limits.oldest_of_busiest());
  limits.add("client", 1);
  for (PendingLimits::Number number = 2; number <= 4; ++number) limits.add("flood", number);
  CHECK_FALSE(limits.surplus("flood"));
  limits.add("flood", 5);
  CHECK(limits.surplus("flood") == 2);  // it has all that one address may have
  CHECK_FALSE(limits.surplus("client"));
  limits.add("other", 6);
  CHECK(limits.surplus("client") == 2);  // all places are taken
  CHECK(limits.surplus("newcomer") == 2);
  limits.remove("flood", 2);
  limits.add("newcomer", 7);
  CHECK(limits.surplus("newcomer") == 3);
  CHECK(limits.count() == 6);
}

TEST_CASE("of several addresses with as many connections, the one with the oldest connection loses it") {
  PendingLimits limits(4, 4);
  limits.add("b", 1);
  limits.add("c", 2);
  limits.add("a", 3);
  limits.add("d", 4);
  CHECK(limits.surplus("e") == 1);
  limits.remove("b", 1);
  limits.remove("b", 1);  // once more, without effect
  limits.add("e", 5);
  CHECK(limits.surplus("f") == 2);
  for (PendingLimits::Number number = 2; number <= 5; ++number)
    for (const char* address : {"a", "c", "d", "e"}) limits.remove(address, number);
  CHECK(limits.count() == 0);
  CHECK_FALSE(limits.oldest_of_busiest());
}

}  // namespace miniray
