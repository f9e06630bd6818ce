#include "tasks/map_flow.hpp"

#include <doctest/doctest.h>

namespace miniray {
namespace {

using Kind = TaskOutcome::Kind;
using Numbers = std::vector<std::int64_t>;

// A map of numbered items: chunks get the numbers 1, 2 and so on.
struct MapScene {
  explicit MapScene(MapFlow::Options options, std::size_t items = 100) : left(items), flow(options, tally) {}

  /// Sends as much as may go out. Returns how many chunks those are.
  int feed() {
    int sent = 0;
    while (const std::size_t wanted = flow.wanted()) {
      const std::size_t count = std::min(wanted, left);
      const std::optional<std::size_t> first = flow.read(count, wanted);
      REQUIRE(first);
      left -= count;
      if (count == 0) break;
      send(*first, count);
      ++sent;
    }
    return sent;
  }
  void send(std::size_t first, std::size_t count, int tries = 0) {
    flow.begin({.number = ++last, .first = first, .count = count, .tries = tries});
  }
  MapFlow::Fate finish(std::int64_t number, Kind kind = Kind::reply) { return flow.finish(number, kind, &chunk); }
  void arrive(std::size_t failed = 0, std::size_t bytes = 0) {
    flow.arrive({.first = chunk.first, .count = chunk.count, .bytes = bytes}, chunk.count - failed, failed);
  }
  void settle(std::int64_t number, std::size_t bytes = 0) {
    REQUIRE(finish(number) == MapFlow::Fate::arrives);
    arrive(0, bytes);
  }
  /// Returns the first item of the piece that comes next, or -1.
  int take() {
    const std::optional<MapFlow::Piece> piece = flow.take();
    return piece ? static_cast<int>(piece->first) : -1;
  }

  Tally tally;
  std::size_t left;
  MapFlow flow;
  std::int64_t last = 0;
  MapFlow::Chunk chunk;  // that has finished
};

}  // namespace

TEST_CASE("results of a map are taken in the order of the items, or as they come") {
  for (const bool ordered : {true, false}) {
    MapScene scene({.total = 6, .chunk_size = 2, .workers = 2, .ordered = ordered}, 6);
    CHECK(scene.feed() == 3);
    CHECK(!scene.flow.reads_on());
    scene.settle(3);
    scene.settle(1);
    CHECK(scene.take() == (ordered ? 0 : 4));
    CHECK(scene.take() == (ordered ? -1 : 0));
    CHECK(!scene.flow.is_settled());
    scene.settle(2);
    CHECK(scene.flow.is_settled());
    CHECK(scene.take() == 2);
    CHECK(scene.take() == (ordered ? 4 : -1));
    CHECK(scene.tally.done() == 6);
  }
}

TEST_CASE("a map sends as many chunks as keep the workers busy, and reads on to the end") {
  MapScene scene({.total = 5, .chunk_size = 1, .workers = 1}, 5);
  CHECK(scene.feed() == 2);
  CHECK(scene.feed() == 0);
  scene.settle(1);
  CHECK(scene.feed() == 1);
  scene.settle(2);
  scene.settle(3);
  CHECK(scene.feed() == 2);
  CHECK(scene.flow.reads_on());  // nobody has seen that there is no sixth item
  scene.settle(4);
  CHECK(scene.feed() == 0);
  CHECK(!scene.flow.reads_on());
  CHECK(!scene.flow.is_settled());
  scene.settle(5);
  CHECK(scene.flow.is_settled());
}

TEST_CASE("the items of a chunk that died with its worker go out one by one") {
  MapScene scene({.total = 4, .chunk_size = 3, .workers = 1}, 4);
  CHECK(scene.feed() == 2);
  CHECK(scene.finish(1, Kind::died) == MapFlow::Fate::sent_singly);
  CHECK(scene.chunk.first == 0);
  CHECK(scene.chunk.count == 3);
  scene.settle(2);
  CHECK(!scene.flow.is_settled());  // though nothing is on its way
  for (std::size_t item = 0; item < 3; ++item) scene.send(item, 1);
  CHECK(scene.finish(4, Kind::died) == MapFlow::Fate::arrives);  // this item did it
  scene.arrive(1);
  scene.settle(5);
  CHECK(scene.take() == -1);
  scene.settle(3);
  for (const int first : {0, 1, 2, 3}) CHECK(scene.take() == first);
  CHECK(scene.flow.is_settled());
  CHECK(scene.tally.done() == 3);
  CHECK(scene.tally.failed() == 1);
}

TEST_CASE("an item that failed is sent again as often as its retries allow") {
  MapScene scene({.total = 2, .chunk_size = 2, .workers = 1, .retries = 1}, 2);
  CHECK(scene.feed() == 1);
  CHECK(scene.finish(1) == MapFlow::Fate::arrives);
  REQUIRE(scene.flow.may_retry(scene.chunk));
  scene.flow.arrive({.first = 1, .count = 1}, 1, 0);
  scene.send(0, 1, scene.chunk.tries + 1);
  CHECK(scene.finish(2) == MapFlow::Fate::arrives);
  CHECK(!scene.flow.may_retry(scene.chunk));
  scene.arrive(1);
  CHECK(scene.take() == 0);
  CHECK(scene.take() == 1);
}

TEST_CASE("after an item has failed no later item begins, and the results of earlier ones are waited for") {
  MapScene scene({.total = 100, .chunk_size = 2, .workers = 2});
  CHECK(scene.feed() == 4);
  CHECK(scene.finish(2) == MapFlow::Fate::arrives);
  scene.arrive(1);
  CHECK(scene.flow.fail(3) == Numbers{4, 3});
  CHECK(scene.feed() == 0);
  CHECK(scene.finish(3, Kind::died) == MapFlow::Fate::arrives);  // nobody wants it: its items do not go out again
  scene.arrive(2);
  CHECK(scene.finish(4, Kind::cancelled) == MapFlow::Fate::arrives);
  scene.flow.arrive({.first = 6, .count = 2}, 0, 0);
  CHECK(!scene.flow.is_settled());
  CHECK(scene.finish(1, Kind::died) == MapFlow::Fate::sent_singly);
  CHECK(!scene.flow.is_settled());
  scene.send(0, 1);
  scene.send(1, 1);
  scene.settle(5);
  scene.settle(6);
  CHECK(scene.flow.is_settled());
  CHECK(scene.take() == 0);
}

TEST_CASE("a map pauses while results that were not taken hold too many bytes, unless it hurries") {
  MapScene scene({.total = 100, .chunk_size = 1, .workers = 1, .results_bytes_max = 10});
  CHECK(scene.feed() == 2);
  scene.settle(1, 8);
  CHECK(scene.feed() == 1);
  scene.settle(2, 8);
  CHECK(scene.feed() == 0);
  CHECK(scene.take() == 0);
  CHECK(scene.feed() == 0);
  CHECK(scene.flow.hand_out(8));
  CHECK(scene.feed() == 1);
  CHECK(!scene.flow.hand_out(8));
  scene.settle(3, 11);
  CHECK(scene.feed() == 0);
  scene.flow.hurry();
  CHECK(scene.feed() == 1);
}

TEST_CASE("a map of an iterator runs only a little ahead of the program that takes its results") {
  MapScene scene({.chunk_size = 1, .workers = 1, .ordered = false}, 1000);
  int sent = 0;
  while (const int more = scene.feed()) {
    sent += more;
    while (scene.chunk.number < sent) scene.settle(scene.chunk.number + 1);
  }
  CHECK(sent == static_cast<int>(limits::lazy_chunks_max));
  CHECK(scene.take() == 0);
  CHECK(scene.feed() == 1);
}

TEST_CASE("an abandoned map sends no more items, and drops those that are cancelled") {
  MapScene scene({.total = 100, .chunk_size = 1, .workers = 2});
  CHECK(scene.feed() == 4);
  const std::size_t wanted = 1;
  CHECK(scene.flow.abandon() == Numbers{4, 3, 2, 1});
  CHECK(scene.feed() == 0);
  CHECK(!scene.flow.reads_on());
  CHECK(!scene.flow.read(1, wanted));  // an item that was being read meanwhile
  CHECK(scene.finish(4, Kind::cancelled) == MapFlow::Fate::dropped);
  CHECK(scene.finish(1) == MapFlow::Fate::arrives);  // it was too late
  scene.arrive();
  CHECK(scene.flow.abandon() == Numbers{3, 2});
  CHECK(scene.tally.done() == 1);
  CHECK(scene.tally.failed() == 0);
}

TEST_CASE("a map that stops is settled when all items that it has sent are") {
  MapScene scene({.total = 100, .chunk_size = 1, .workers = 1});
  CHECK(scene.feed() == 2);
  scene.flow.stop();
  CHECK(scene.feed() == 0);
  scene.settle(1);
  CHECK(!scene.flow.is_settled());
  scene.settle(2);
  CHECK(scene.flow.is_settled());
}

TEST_CASE("the next map of a function begins with the times that were measured in the last one") {
  Tally tally;
  MapFlow first({.function = "f", .total = 1'000'000, .workers = 1}, tally);
  first.measure(10, 10'000);  // 1 us each
  CHECK(tally.mean_ns("f") == 1000);
  MapFlow second({.function = "f", .total = 1'000'000, .workers = 1}, tally);
  CHECK(second.wanted() == limits::chunk_ms * 1000);
  MapFlow other({.function = "g", .total = 1'000'000, .workers = 1}, tally);
  CHECK(other.wanted() == limits::first_chunk_items_max);
}

}  // namespace miniray
