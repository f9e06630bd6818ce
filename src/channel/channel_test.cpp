#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "miniray/miniray.hpp"

namespace miniray {
namespace {

// A channel whose other end is a bare socket, for saying what no channel would say.
std::pair<Channel, int> channel_and_socket() {
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  return {Channel(ends[0]), ends[1]};
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

TEST_CASE("a malformed body costs one message, not the channel") {
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

TEST_CASE("a peer that is cut off in the middle of a message is told apart from one that has finished") {
  auto [channel, socket] = channel_and_socket();
  say(socket, std::string("MR\0\1\0\0\0\0\4\0\0\0\0\0\0\0nu", 18));
  close(socket);
  CHECK_THROWS_WITH_AS((void)channel.recv(), doctest::Contains("cut off in the middle of a message"), EndOfStream);
}

TEST_CASE("slots are used again, and dropped when others need the room") {
  auto [here, there] = Channel::pair();
  for (const std::size_t mib : {1UL, 300UL, 1UL, 400UL, 2UL}) {
    for (int i = 0; i < 2; ++i) {
      const Value value(Array::of(std::vector<std::uint8_t>(mib << 20U, static_cast<std::uint8_t>(mib))));
      here.send(value);
      CHECK(there.recv() == value);
    }
  }
}

TEST_CASE("arrays that are kept do not block the sender") {
  auto [here, there] = Channel::pair();
  std::vector<Value> kept;
  bool sent = true;
  for (int i = 0; i < 200; ++i) {  // more than there are slots
    sent = here.send_some(encode(Array::of(std::vector<double>(10'000, i))));
    while (!sent || kept.size() < static_cast<std::size_t>(i) + 1) {
      if (auto message = there.try_receive()) kept.push_back(decode(*message));
      if (!sent) sent = here.flush_some();
    }
  }
  for (int i = 0; i < 200; ++i) CHECK(kept[static_cast<std::size_t>(i)].array<double>()[9'999] == i);
}

}  // namespace miniray
