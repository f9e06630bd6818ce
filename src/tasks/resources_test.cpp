#include "tasks/resources.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "miniray/error.hpp"

namespace miniray {

TEST_CASE("resources that a task has taken are not free until it gives them back") {
  NodeResources node(2, 0, {{"licence", 1}});
  const Demand one{.cpus = 1, .custom = {{"licence", 1}}};
  CHECK(node.fits(one));
  const auto gpus = node.take(one);
  CHECK(gpus.empty());
  CHECK_FALSE(node.fits(one));  // there is no other licence
  CHECK(node.fits({.cpus = 1}));
  CHECK_FALSE(node.fits({.cpus = 2}));
  CHECK(node.free_share() == 0.5);
  node.give_back(one, gpus);
  CHECK(node.fits({.cpus = 2, .custom = {{"licence", 1}}}));
  CHECK(node.free_share() == 1.0);
}

TEST_CASE("amounts in tenths add up without rounding errors") {
  NodeResources node(1, 1, {});
  const Demand tenth{.cpus = 0.1, .gpus = 0.1};
  for (int i = 0; i < 10; ++i) {
    REQUIRE(node.fits(tenth));
    CHECK(node.take(tenth) == std::vector<std::size_t>{0});
  }
  CHECK_FALSE(node.fits(tenth));
  for (int i = 0; i < 10; ++i) node.give_back(tenth, {0});
  CHECK(node.fits({.cpus = 1, .gpus = 1}));
}

TEST_CASE("shares fill one GPU before they use another, so that other GPUs stay whole") {
  NodeResources node(8, 3, {});
  const Demand half{.gpus = 0.5}, two{.gpus = 2};
  CHECK(node.gpus_for(half) == std::vector<std::size_t>{0});
  CHECK(node.take(half) == std::vector<std::size_t>{0});
  CHECK(node.take(half) == std::vector<std::size_t>{0});
  CHECK(node.take(half) == std::vector<std::size_t>{1});
  CHECK_FALSE(node.fits(two));
  CHECK(node.gpus_for(two).empty());
  node.give_back(half, {0});
  CHECK_FALSE(node.fits(two));
  node.give_back(half, {0});
  CHECK(node.take(two) == std::vector<std::size_t>{0, 2});
  CHECK(node.take(half) == std::vector<std::size_t>{1});
  CHECK_FALSE(node.fits(half));
}

TEST_CASE("resources that are set aside for a task are not given to later ones") {
  NodeResources node(4, 2, {{"licence", 2}});
  node.speak_for({.cpus = 3, .gpus = 1, .custom = {{"licence", 1}}});
  CHECK(node.is_spoken_for());
  CHECK(node.fits({.cpus = 1}));
  CHECK_FALSE(node.fits({.cpus = 2}));
  CHECK_FALSE(node.fits({.cpus = 1, .gpus = 1}));
  CHECK(node.fits({.cpus = 1, .custom = {{"licence", 1}}}));
  CHECK_FALSE(node.fits({.cpus = 1, .custom = {{"licence", 2}}}));
  node.clear_spoken_for();
  CHECK_FALSE(node.is_spoken_for());
  CHECK(node.fits({.cpus = 4, .gpus = 2, .custom = {{"licence", 2}}}));
}

TEST_CASE("the error says which resources a node lacks") {
  const NodeResources node(2, 1, {{"licence", 1}});
  CHECK(node.could_ever_fit({.cpus = 2, .gpus = 0.5, .custom = {{"licence", 1}}}));
  CHECK(node.missing({.cpus = 3}) == "num_cpus 3 (it has 2)");
  CHECK(node.missing({.cpus = 2.5, .gpus = 2, .custom = {{"licence", 1}, {"tape", 1}}}) ==
        "num_cpus 2.5 (it has 2), num_gpus 2 (it has 1), tape 1 (it has 0)");
  CHECK(text_of(Demand{.cpus = 2, .gpus = 0.5, .custom = {{"licence", 1}}, .node = "n1"}) ==
        "num_cpus=2, num_gpus=0.5, licence=1, node=\"n1\"");
}

TEST_CASE("a demand that makes no sense is refused") {
  CHECK_THROWS_WITH_AS(check(Demand{.cpus = -1}), "num_cpus is 0 or more, not -1", UsageError);
  CHECK_THROWS_WITH_AS(check(Demand{.gpus = 1.5}), "num_gpus is a share of one GPU, or a whole number of them, not 1.5",
                       UsageError);
  CHECK_THROWS_AS(check(Demand{.gpus = std::numeric_limits<double>::quiet_NaN()}), UsageError);
  CHECK_THROWS_WITH_AS(check(Demand{.custom = {{"tape", -2}}}), "the resource tape is 0 or more, not -2", UsageError);
  check(Demand{.cpus = 0, .gpus = 2});
}

TEST_CASE("if no task has resources, all are free, to the last digit") {
  NodeResources node(1, 1, {{"licence", 1}});
  const Demand more{.cpus = 0.3, .gpus = 0.3, .custom = {{"licence", 0.3}}};
  const Demand less{.cpus = 0.1, .gpus = 0.1, .custom = {{"licence", 0.1}}};
  const std::vector<std::size_t> gpus_of_more = node.take(more), gpus_of_less = node.take(less);
  node.check_invariants({{&more, &gpus_of_more}, {&less, &gpus_of_less}});
  node.give_back(more, gpus_of_more);
  node.check_invariants({{&less, &gpus_of_less}});
  node.give_back(less, gpus_of_less);
  node.check_invariants({});
  CHECK(node.free_share() == 1.0);
}

}  // namespace miniray
