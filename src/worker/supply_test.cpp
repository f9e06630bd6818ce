#include "worker/supply.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <thread>

#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// A worker's SupplyLine, and the server's end of it.
struct Pair {
  Pair() : Pair(system::socket_pair()) {}
  explicit Pair(std::pair<Fd, Fd> ends) : line(std::move(ends.first)), server(std::move(ends.second)) {}
  SupplyLine line;
  Fd server;
};

void wait_for_question(const Fd& server) { CHECK(system::poll_one(server.get(), POLLIN, 10'000) == POLLIN); }

}  // namespace

TEST_CASE("a worker gets a buffer now or when it comes, and writes to a copy of its own") {
  SupplyStore store;
  Pair first, second;
  const std::string content(200'000, 'x');
  const auto bytes = std::as_bytes(std::span(content));
  store.put(7, bytes, {1, 2});
  std::optional<Buffer> got_first, got_second;
  std::thread worker([&] { got_first = first.line.fetch(7, content.size()); });
  wait_for_question(first.server);
  CHECK(store.on_request(1, first.server.get()));
  worker.join();
  std::memset(got_first->data, 'y', 10);

  std::thread other([&] {
    got_second = second.line.fetch(7, content.size());
    const Buffer late = second.line.fetch(8, 3);
    CHECK(std::memcmp(late.data, "new", 3) == 0);
  });
  wait_for_question(second.server);
  CHECK(store.on_request(2, second.server.get()));
  wait_for_question(second.server);
  CHECK(store.on_request(2, second.server.get()));  // buffer 8 is not there yet
  store.put(8, std::as_bytes(std::span("new", 3)), {2});
  other.join();
  CHECK(std::memcmp(got_second->data, content.data(), content.size()) == 0);
}

TEST_CASE("a buffer that is missing, or of another size than the message says, is an error at once") {
  SupplyStore store;
  Pair pair;
  for (const bool nothing : {true, false}) {
    CAPTURE(nothing);
    if (nothing)
      store.put_missing(1, {5});
    else
      store.put(1, std::as_bytes(std::span("four", 4)), {5});
    std::thread worker([&] { CHECK_THROWS_AS((void)pair.line.fetch(1, 100), ProtocolError); });
    wait_for_question(pair.server);
    CHECK(store.on_request(5, pair.server.get()));
    worker.join();
  }
}

}  // namespace miniray
