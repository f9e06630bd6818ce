#include "worker/supply.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// A worker's SupplyLine, and the server's end of it.
struct Pair {
  Pair() : Pair(system::socket_pair()) {}
  explicit Pair(std::pair<Fd, Fd> ends) : line(std::move(ends.first)), server(std::move(ends.second)) {}
  // Returns whether the worker gets this content.
  bool ask(SupplyStore& store, SupplyStore::Worker worker, std::uint64_t number, const std::string& content) {
    bool right = false;
    std::thread asking([&] {
      const Buffer got = line.fetch(number, content.size());
      right = std::memcmp(got.data, content.data(), content.size()) == 0;
    });
    (void)system::poll_one(server.get(), POLLIN, 10'000);
    const bool understood = store.on_request(worker, server.get());
    asking.join();
    return understood && right;
  }
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

TEST_CASE("a worker that lies, floods or does not read harms no other worker") {
  constexpr int seeds = 200, steps = 60;
  constexpr SupplyStore::Worker honest = 1, liar = 2;
  for (int seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    std::mt19937 chance(static_cast<unsigned>(seed));
    const auto pick = [&](unsigned below) { return std::uniform_int_distribution<unsigned>(0, below - 1)(chance); };
    SupplyStore store;
    Pair good;
    auto [lying, server] = system::socket_pair();
    const auto lie_in = [&socket = lying](std::string_view bytes) {
      const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
      (void)system::send(socket.get(), std::span(&piece, 1), {});
    };
    bool heard = true, dropped = false;  // the server reads the liar's socket until it breaks the rules
    std::uint64_t number = 0;
    for (int step = 0; step < steps; ++step) {
      struct {
        std::uint64_t number, bytes;
      } lie{pick(4) == 0 ? ~std::uint64_t{0} : number + pick(3), pick(2) * 1'000'000};
      const std::string_view bytes(reinterpret_cast<const char*>(&lie), sizeof(lie));
      switch (pick(6)) {
        case 0:  // a request for any buffer, now or later, its own or not
          lie_in(bytes);
          break;
        case 1:  // half of a request
          lie_in(bytes.substr(0, 1 + pick(15)));
          break;
        case 2:  // many, and no answer is read
          for (int i = 0; i < 1000 && system::send(lying.get(), std::array{iovec{&lie, sizeof(lie)}}, {}).bytes > 0;
               ++i) {
          }
          break;
        case 3: {  // descriptors, which a request does not have
          const std::array<int, 2> descriptors{lying.get(), lying.get()};
          (void)system::send(lying.get(), std::array{iovec{&lie, sizeof(lie)}}, descriptors);
          break;
        }
        case 4:
          if (!dropped) store.put_missing(++number, {liar});
          break;
        case 5:
          if (pick(10) == 0 && !dropped) {
            store.drop_worker(liar);
            dropped = true;
          }
          break;
      }
      while (heard && !dropped && system::poll_one(server.get(), POLLIN, 0) > 0)
        heard = store.on_request(liar, server.get());
      const std::string content = "content " + std::to_string(++number);
      std::vector<SupplyStore::Worker> workers{honest};
      if (!dropped) workers.push_back(liar);
      store.put(number, std::as_bytes(std::span(content)), workers);
      CHECK(good.ask(store, honest, number, content));
    }
    if (!dropped) store.drop_worker(liar);
  }
}

}  // namespace miniray
