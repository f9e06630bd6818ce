#include "channel/ring.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/clock.hpp"
#include "miniray/miniray.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

const ChannelOptions checked_channel{.check_invariants = true};

struct Ends {
  RingWriter writer;
  RingReader reader;
  Fd memory;
};

// Returns the id of a thread as soon as the thread has written it.
pid_t thread_in(const std::atomic<pid_t>& id) {
  wait_until("the start of a thread", [&] { return id != 0; });
  return id;
}

bool put(RingWriter& writer, std::uint64_t after, std::string frame) {
  const iovec piece{frame.data(), frame.size()};
  return writer.put(after, std::span(&piece, 1), now_ns()) != RingWriter::Outcome::not_put;
}

Ends ring() {
  auto made = RingWriter::make();
  REQUIRE(made);
  Fd other(dup(made->second.get()));
  Ends ends{std::move(made->first), RingReader(std::move(made->second)), std::move(other)};
  ends.reader.watch();
  CHECK_FALSE(put(ends.writer, 0, "nothing was heard of the reader yet"));
  return ends;
}

}  // namespace

TEST_CASE("a ring returns frames whole and in order, however often it wraps around") {
  Ends ends = ring();
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::string frame(1 + i * 37 % limits::ring_frame_bytes_max, static_cast<char>('a' + i % 26));
    for (const Patience patience("room in the ring"); !put(ends.writer, 0, frame); patience.check()) {
      if (ends.reader.empty()) continue;
      const std::size_t bytes = 1 + next * 37 % limits::ring_frame_bytes_max;
      CHECK(ends.reader.take(0) == std::string(bytes, static_cast<char>('a' + next % 26)));
      ++next;
    }
  }
  while (next < 2000) {
    CHECK(ends.reader.take(0)->size() == 1 + next * 37 % limits::ring_frame_bytes_max);
    ++next;
  }
  CHECK(ends.reader.empty());
  CHECK_FALSE(ends.reader.take(0));
}

TEST_CASE("a frame waits until the reader has read as much of the stream as was sent before it") {
  Ends ends = ring();
  REQUIRE(put(ends.writer, 100, "later"));
  CHECK_FALSE(ends.reader.take(99));
  CHECK_FALSE(ends.reader.empty());
  CHECK(ends.reader.take(100) == "later");
}

TEST_CASE("a frame to a reader that sleeps, or that was silent for long, does not go into the ring") {
  Ends ends = ring();
  ends.reader.sleep();
  CHECK_FALSE(put(ends.writer, 0, "this wakes it"));
  CHECK(put(ends.writer, 0, "now it is awake"));
  CHECK(ends.reader.take(0) == "now it is awake");
  usleep(2 * limits::ring_silence_ns / 1000);
  CHECK_FALSE(put(ends.writer, 0, "is anybody there?"));
  CHECK(put(ends.writer, 0, "the socket knows"));
}

TEST_CASE("a peer that writes nonsense into the ring is refused") {
  Ends ends = ring();
  const auto memory = system::Mapping(ends.memory.get(), ring_head_bytes + limits::ring_bytes);
  auto& head = *reinterpret_cast<RingHead*>(memory.bytes().data());
  auto& record = *reinterpret_cast<RingRecord*>(memory.bytes().data() + ring_head_bytes);
  SUBCASE("more than there can be") { head.written = limits::ring_bytes + 16; }
  SUBCASE("a frame that is longer than what was written") {
    head.written = 32;
    record.frame_bytes = 100;
  }
  SUBCASE("a frame that is longer than any") {
    head.written = limits::ring_bytes;
    record.frame_bytes = UINT64_MAX;
  }
  CHECK_THROWS_WITH_AS((void)ends.reader.take(0), doctest::Contains("a malformed record"), ProtocolError);
}

TEST_CASE("a reader that claims to have read more than was written gets no more frames than the ring holds") {
  Ends ends = ring();
  const auto memory = system::Mapping(ends.memory.get(), ring_head_bytes + limits::ring_bytes);
  auto& read = reinterpret_cast<RingHead*>(memory.bytes().data())->read;
  read = UINT64_MAX;
  std::uint64_t frames = 0, refused = 0;
  const std::string frame(1000, 'x');
  for (int i = 0; i < 1000; ++i) ++(put(ends.writer, 0, frame) ? frames : refused);
  CHECK(refused > 0);
  CHECK(frames * frame.size() <= limits::ring_bytes);
  ends.writer.check_invariants();
}

TEST_CASE("a reader that waits awake says on which CPU, and one that sleeps does not") {
  const std::vector<int> cpus = system::usable_cpu_list();
  Ends ends = ring();
  const auto on = [](int cpu, const auto& check) {  // in a thread of its own, so that the test keeps its CPUs
    std::thread([&] {
      CHECK(system::pin_to_cpus({cpu}) == std::vector{cpu});
      check();
    }).join();
  };
  on(cpus.front(), [&] {
    ends.reader.sleep();
    CHECK_FALSE(ends.writer.reader_waits_for_this_cpu());
    ends.reader.show_cpu();
    CHECK(ends.writer.reader_waits_for_this_cpu());
  });
  on(cpus.back(), [&] {
    CHECK(ends.writer.reader_waits_for_this_cpu() == (cpus.size() == 1));
    ends.reader.show_cpu();  // the reader has moved
    CHECK(ends.writer.reader_waits_for_this_cpu());
    ends.reader.sleep();
    CHECK_FALSE(ends.writer.reader_waits_for_this_cpu());
  });
}

TEST_CASE("memory of another size is refused") {
  CHECK_THROWS_AS(RingReader(system::sealed_memory("miniray", 4096)), ProtocolError);
  CHECK_THROWS_AS(RingReader{Fd()}, ProtocolError);
}

// The tests below use channels, which begin to use rings after a few messages.

TEST_CASE("small and large messages keep their order across ring, socket and shared memory") {
  auto [here, there] = Channel::pair(checked_channel);
  constexpr int count = 3000;
  std::atomic<pid_t> writing = 0;  // the writer's thread
  std::thread writer([&channel = here, &writing] {
    writing = gettid();
    for (int i = 0; i < count; ++i) {
      if (i % 7 == 3)
        channel.send(Value::list({i, std::string(20'000 + i, 'x')}));  // through the socket
      else if (i % 50 == 20)
        channel.send(Value::list({i, Array::zeros<std::uint8_t>({100'000})}));  // shared memory
      else
        channel.send(Value::list({i, std::string(i % 900, 'y')}));
    }
  });
  for (int i = 0; i < count; ++i) {
    if (i % 500 == 0) wait_until_blocked(thread_in(writing));  // the ring is full, and the socket, too
    const Value got = there.recv();
    REQUIRE(got.at(0) == i);
  }
  writer.join();
}

TEST_CASE("a message in the ring wakes a receive, and a wait_any") {
  auto [here, there] = Channel::pair(checked_channel);
  std::atomic<pid_t> answering = 0;
  std::thread other([&channel = there, &answering] {
    answering = gettid();
    while (true) {
      const Value got = channel.recv();
      if (got.is_null()) return;
      channel.send(got);
    }
  });
  std::array<Channel*, 1> one{&here};
  for (int i = 0; i < 600; ++i) {
    here.send(i);
    if (i % 3 == 0) {
      REQUIRE(wait_any(one, 20.0).size() == 1);
    } else if (i % 3 == 1) {
      pollfd readable{here.fileno(), POLLIN, 0};
      while (!here.ready()) REQUIRE(poll(&readable, 1, 20'000) == 1);
    }
    if (i % 100 == 0) wait_until_blocked(thread_in(answering));  // the next message has to wake it
    REQUIRE(here.recv({.timeout_s = 20.0}) == i);
  }
  here.send(Value());
  other.join();
}

// Sends and receives until both directions would go through the ring, and leaves the reader with its wake-ups off.
void warm_up(Channel& from, Channel& to) {
  for (int i = 0; i < 20; ++i) {
    from.send(i);
    REQUIRE(to.recv() == i);
  }
}

TEST_CASE("a message after a receive wakes whoever waits for the descriptor") {
  auto [here, there] = Channel::pair(checked_channel);
  warm_up(here, there);
  SUBCASE("which is asked for then") {}
  SUBCASE("which was asked for before") {
    (void)there.fileno();
    warm_up(here, there);
  }
  SUBCASE("which is asked for after a receive that has found nothing") { CHECK_FALSE(there.try_receive()); }
  pollfd readable{there.fileno(), POLLIN, 0};
  here.send("come");
  REQUIRE(poll(&readable, 1, 20'000) == 1);
  CHECK(there.recv() == "come");
}

TEST_CASE("a wait_any sees a message that came after a receive") {
  auto [here, there] = Channel::pair(checked_channel);
  warm_up(here, there);
  std::array<Channel*, 1> one{&there};
  SUBCASE("without having seen the channel before") {}
  SUBCASE("after it has seen a message that was put back, and did not look at the ring") {
    here.send("back");
    there.put_back(there.receive());
    REQUIRE(wait_any(one, 20.0).size() == 1);
    CHECK(there.recv() == "back");
  }
  here.send("come");
  REQUIRE(wait_any(one, 0.5).size() == 1);
  CHECK(there.recv() == "come");
}

TEST_CASE("calls, messages and drops keep their order and lanes if they are taken from the ring") {
  auto [here, there] = Channel::pair(checked_channel);
  warm_up(here, there);
  Message call = encode(1), drop;
  call.kind = Message::Kind::call;
  call.head.number = 5;
  drop.kind = Message::Kind::drop;
  drop.head.number = 6;
  const std::uint64_t before = there.arrived();
  here.send(call);
  here.send(drop);
  here.send("a");
  here.send("b");
  CHECK(there.recv() == "a");
  CHECK(there.was_dropped(6));
  CHECK(there.receive({.lane = Lane::any}).head.number == 5);
  CHECK_THROWS_AS((void)there.recv({.max_size = 0}), MessageTooLarge);
  CHECK(there.receive({.lane = Lane::any}).kind == Message::Kind::message);
  CHECK(there.arrived() == before + 3);
  CHECK_FALSE(there.try_receive());
}

TEST_CASE("wait_any reports each of several messages that come at once") {
  auto [here, there] = Channel::pair(checked_channel);
  std::thread other([&channel = there, receiving = gettid()] {
    while (!channel.recv().is_null()) {
      wait_until_blocked(receiving);  // the first message wakes it, and the rest is in the ring before it looks
      for (int i = 0; i < 4; ++i) channel.send(i);
    }
  });
  std::array<Channel*, 1> one{&here};
  for (int round = 0; round < 200; ++round) {
    here.send(round);
    (void)wait_any(one, 0.0);  // the channel has nothing, and is not pending any more
    for (int i = 0; i < 4; ++i) {
      if (i > 0) REQUIRE(wait_any(one, 20.0).size() == 1);
      REQUIRE(here.recv() == i);
    }
  }
  here.send(Value());
  other.join();
}

TEST_CASE("messages that were put into the ring before the end are received") {
  auto [here, there] = Channel::pair(checked_channel);
  for (int i = 0; i < 100; ++i) here.send(i);
  here.close();
  for (int i = 0; i < 100; ++i) CHECK(there.recv() == i);
  CHECK_THROWS_AS((void)there.recv(), EndOfStream);
  CHECK_THROWS_AS(
      [&] {
        for (int i = 0; i < 100; ++i) there.send(i);
      }(),
      EndOfStream);
}

TEST_CASE("if the peer receives nothing, ring and socket fill up, and send_some keeps the rest") {
  auto [here, there] = Channel::pair(checked_channel);
  int sent = 0;
  while (here.send_some(encode(Value::list({sent++, std::string(1000, 'z')})))) REQUIRE(sent < 1'000'000);
  for (int i = 0; i < 50; ++i) (void)here.send_some(encode(Value::list({sent++, "small"})));
  for (int i = 0; i < sent; ++i) {
    REQUIRE(there.recv({.timeout_s = 20.0}).at(0) == i);
    (void)here.flush_some();
  }
}

}  // namespace miniray
