#include "tasks/map_plan.hpp"

#include <doctest/doctest.h>

#include "miniray/limits.hpp"

namespace miniray {

TEST_CASE("the first chunks are a small part of each worker's share") {
  CHECK(MapPlan({.total = 640, .workers = 2}).next_length() == 10);
  CHECK(MapPlan({.total = 3, .workers = 2}).next_length() == 1);
  CHECK(MapPlan({.total = 1'000'000, .workers = 2}).next_length() == limits::first_chunk_items_max);
  CHECK(MapPlan({.workers = 2}).next_length() == 1);
}

TEST_CASE("later chunks are as long as the measured time suggests, and the last ones are short") {
  MapPlan plan({.total = 1000, .workers = 2});
  plan.measured(10, 10 * 100'000);  // 0.1 ms each
  CHECK(plan.next_length() == limits::chunk_ms * 10);
  plan.sent(960);
  CHECK(plan.next_length() == 10);
  plan.sent(38);
  CHECK(plan.next_length() == limits::chunk_ms * 10 / 8);
  plan.measured(1, 1'000'000'000);
  CHECK(plan.next_length() == 1);
  MapPlan quick({.total = 10'000'000, .workers = 1, .mean_ns = 1});
  CHECK(quick.next_length() == limits::chunk_items_max);
  MapPlan endless({.workers = 1, .mean_ns = 1});
  CHECK(endless.next_length() == limits::lazy_chunk_items_max);
}

TEST_CASE("a mean follows what is measured, slowly") {
  MapPlan plan({.total = 10});
  plan.measured(1, 1000);
  CHECK(plan.mean_ns() == doctest::Approx(1000));
  plan.measured(1, 2000);
  CHECK(plan.mean_ns() == doctest::Approx(1300));
  plan.measured(4, 0);
  CHECK(plan.mean_ns() == doctest::Approx(910));
  MapPlan zero({.total = 10});
  zero.measured(1, 0);
  CHECK(zero.mean_ns() == 1);
}

TEST_CASE("a given chunk size is used, unless each call has terms of its own") {
  CHECK(MapPlan({.total = 100, .chunk_size = 7, .mean_ns = 1}).next_length() == 7);
  CHECK(MapPlan({.total = 100, .chunk_size = 7, .one_by_one = true}).next_length() == 1);
}

TEST_CASE("every worker has one chunk that runs and one that waits; an iterator does not run far ahead") {
  const MapPlan listed({.total = 100, .workers = 3});
  CHECK(listed.has_room(5));
  CHECK(!listed.has_room(6));
  CHECK(listed.has_room(0, 1000));
  const MapPlan endless({.workers = 3});
  CHECK(endless.has_room(2, 3 * limits::lazy_chunks_max - 3));
  CHECK(!endless.has_room(2, 3 * limits::lazy_chunks_max - 2));
}

}  // namespace miniray
