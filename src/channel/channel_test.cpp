#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "miniray/miniray.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

const ChannelOptions checked{.check_invariants = true};

// A channel whose other end is a bare socket, so that a test can send bytes that no channel would send.
std::pair<Channel, int> channel_and_socket() {
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  return {Channel(ends[0], checked), ends[1]};
}

void say(int socket, std::string_view bytes) {
  REQUIRE(write(socket, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace

TEST_CASE("a peer that speaks something else is refused, and stays refused") {
  auto [channel, socket] = channel_and_socket();
  say(socket, "GET / HTTP/1.1\r\nHost: example\r\n\r\n");
  CHECK_THROWS_WITH_AS((void)channel.recv(), doctest::Contains("does it speak another protocol or version?"),
                       ProtocolError);
  CHECK_THROWS_AS((void)channel.recv(), EndOfStream);
  CHECK_THROWS_AS(channel.send(1), EndOfStream);
  close(socket);
}

TEST_CASE("a receive with a time-out takes what has arrived at once, also if nothing spins") {
  ChannelOptions options = checked;
  options.spin_us = 0;
  auto [here, there] = Channel::pair(options);
  here.send("come");
  constexpr double for_ever_s = 1e6;  // longer than this test may take
  CHECK(there.recv({.timeout_s = for_ever_s}) == "come");
}

TEST_CASE("after a malformed body, the channel can still be used") {
  auto [channel, socket] = channel_and_socket();
  const std::string bad("MR\0\1\0\0\0\0\4\0\0\0\0\0\0\0nul!", 20);
  const std::string good("MR\0\1\0\0\0\0\4\0\0\0\0\0\0\0null", 20);
  say(socket, bad + good);
  CHECK_THROWS_AS((void)channel.recv(), ProtocolError);
  CHECK(channel.recv() == Value());
  close(socket);
}

TEST_CASE("shared memory that was not offered is refused") {
  auto [channel, socket] = channel_and_socket();
  say(socket, std::string("MR\3\0\0\0\0\0\4\0\0\0\0\0\0\0\1\0\0\0", 20));
  CHECK_THROWS_WITH_AS((void)channel.recv(), doctest::Contains("without a descriptor"), ProtocolError);
  close(socket);
  auto [other, other_socket] = channel_and_socket();
  say(other_socket, std::string("MR\0\0\1\0\0\0\1\0\0\0\0\0\0\0"
                                "\0\0\1\0\0\0\0\0\7\0\0\0\0\0\0\0\xc0",
                                33));
  CHECK_THROWS_WITH_AS((void)other.recv(), doctest::Contains("did not offer"), ProtocolError);
  close(other_socket);
}

TEST_CASE("a peer that is cut off in the middle of a message differs from one that has finished") {
  auto [channel, socket] = channel_and_socket();
  say(socket, std::string("MR\0\1\0\0\0\0\4\0\0\0\0\0\0\0nu", 18));
  close(socket);
  CHECK_THROWS_WITH_AS((void)channel.recv(), doctest::Contains("cut off in the middle of a message"), EndOfStream);
}

TEST_CASE("slots are used again, and dropped when others need the room") {
  auto [here, there] = Channel::pair(checked);
  for (const std::size_t mib : {1UL, 300UL, 1UL, 400UL, 2UL}) {
    for (int i = 0; i < 2; ++i) {
      const Value value(Array::of(std::vector<std::uint8_t>(mib << 20U, static_cast<std::uint8_t>(mib))));
      here.send(value);
      CHECK(there.recv() == value);
    }
  }
}

TEST_CASE("a receiver that keeps its arrays does not block the sender") {
  auto [here, there] = Channel::pair(checked);
  std::vector<Value> kept;
  bool sent = true;
  for (int i = 0; i < 200; ++i) {  // more than there are slots
    sent = here.send_some(encode(Array::of(std::vector<double>(10'000, i))));
    for (const Patience patience("an array"); !sent || kept.size() <= static_cast<std::size_t>(i); patience.check()) {
      if (auto message = there.try_receive()) kept.push_back(decode(*message));
      if (!sent) sent = here.flush_some();
    }
  }
  for (int i = 0; i < 200; ++i) CHECK(kept[static_cast<std::size_t>(i)].array<double>()[9'999] == i);
}

TEST_CASE("unsent bytes of a closed channel are dropped, and flush_some throws") {
  auto [here, there] = Channel::pair(checked);
  while (here.send_some(encode(std::string(100'000, 'x')))) {
  }
  CHECK(here.has_unsent());
  here.close();
  CHECK_THROWS_WITH_AS((void)here.flush_some(), doctest::Contains("was closed by this process"), EndOfStream);
}

TEST_CASE("unsent bytes for a peer that sent nonsense are dropped, and flush_some throws") {
  auto [channel, socket] = channel_and_socket();
  while (channel.send_some(encode(std::string(100'000, 'x')))) {
  }
  say(socket, "GET / HTTP/1.1\r\nHost: example\r\n\r\n");
  CHECK_THROWS_AS((void)channel.try_receive(), ProtocolError);
  CHECK_THROWS_AS((void)channel.flush_some(), EndOfStream);
  close(socket);
}

TEST_CASE("descriptors that wait for room are sent with their bytes, or not at all") {
  auto [channel, socket] = channel_and_socket();
  const std::string filling(1 << 16, '\0');
  for (std::size_t bytes = filling.size(); bytes > 0;) {
    if (send(channel.fileno(), filling.data(), bytes, MSG_DONTWAIT) < 0) bytes /= 2;
  }
  CHECK_FALSE(channel.send_some(encode(Array::zeros<std::uint8_t>({100'000}))));  // in shared memory, not announced yet
  close(socket);
  channel.pump();  // finds that the peer is gone
  CHECK_FALSE(channel.has_unsent());
  CHECK_THROWS_AS((void)channel.recv(), EndOfStream);
}

TEST_CASE("a message that is put back is the next one again, and the inbox counts it") {
  auto [here, there] = Channel::pair(checked);
  for (int i = 0; i < 3; ++i) here.send(i);
  Message first = there.receive();
  Message second = there.receive();
  there.put_back(std::move(second));
  there.put_back(std::move(first));
  for (int i = 0; i < 3; ++i) CHECK(there.recv() == i);
}

TEST_CASE("buffers that are kept for later messages are counted, and dropped when told to") {
  auto [here, there] = Channel::pair(checked);
  const std::vector<std::uint8_t> content(100'000, 7);
  const Message array = encode(Array::of(content));
  for (const int round : {1, 2}) {
    CAPTURE(round);
    Message keep;
    keep.kind = Message::Kind::keep;
    keep.head.number = 5;
    keep.buffers = array.buffers;
    here.send(keep);
    Message named = array;
    named.places = {BufferPlace::kept(5)};
    here.send(named);
    CHECK(there.recv() == Value(Array::of(content)));
    Message drop;
    drop.kind = Message::Kind::forget;
    drop.head.number = 5;
    here.send(drop);
  }
  Message named = array;
  named.places = {BufferPlace::kept(5)};
  here.send(named);
  CHECK_THROWS_WITH_AS((void)there.recv(), doctest::Contains("a kept buffer that it has not sent"), ProtocolError);
}

TEST_CASE("the invariants of wait sets hold when channels change sets or close") {
  auto [one, one_there] = Channel::pair(checked);
  auto other = std::make_unique<std::pair<Channel, Channel>>(Channel::pair(checked));
  std::array<Channel*, 2> both{&one, &other->first};
  CHECK(wait_any(both, 0.0).empty());
  one_there.send(1);
  other->second.send(2);
  CHECK(wait_any(both, 20.0) == std::vector<std::size_t>{0, 1});
  std::array<Channel*, 3> twice{&one, &other->first, &one};
  CHECK_FALSE(wait_any(twice, 20.0).empty());
  other.reset();
  std::array<Channel*, 1> alone{&one};
  CHECK(wait_any(alone, 20.0).size() == 1);
  CHECK(one.recv() == 1);
  CHECK(wait_any(alone, 0.0).empty());
  one.check_invariants();
}

TEST_CASE("a channel whose stream breaks is ready, and its receive() throws, while others are waited for") {
  auto [good, good_there] = Channel::pair(checked);
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  Channel bad(ends[0], checked);
  const std::string garbage(64, 'x');
  REQUIRE(write(ends[1], garbage.data(), garbage.size()) == 64);
  std::array<Channel*, 2> both{&good, &bad};
  CHECK(wait_any(both, 20.0) == std::vector<std::size_t>{1});
  CHECK_THROWS_AS((void)bad.recv(), ProtocolError);
  CHECK_THROWS_AS((void)bad.recv(), EndOfStream);
  good_there.send(1);
  std::array<Channel*, 1> left{&good};
  CHECK(wait_any(left, 20.0).size() == 1);
  CHECK(good.recv() == 1);
  ::close(ends[1]);
}

}  // namespace miniray
