// Channels inside messages: two workers that talk to each other, and what becomes of ends that are not used.
#include <dirent.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include "base/system.hpp"
#include "miniray/channel.hpp"
#include "miniray/worker.hpp"
#include "tests/tcp_ends.hpp"
#include "tests/wait_until.hpp"
#include "wire/passed.hpp"

namespace miniray {
namespace {

const ChannelOptions passed_checked{.check_invariants = true};

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  REQUIRE(folder != nullptr);
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Sends every number that it receives from the coordinator to its peer, and every number from its peer back.
void relay(Handle& handle) {
  Channel peer(handle.recv()["peer"]);
  for (;;) {
    const Value number = handle.recv();
    peer.send(number);
    handle.send(peer.recv());
  }
}

}  // namespace

TEST_CASE("two workers talk without the coordinator") {
  Worker one(relay), two(relay);
  {
    auto [left, right] = Channel::pair();
    one.send({{"peer", std::move(left)}});
    two.send({{"peer", std::move(right)}});
  }
  for (int i = 0; i < 20; ++i) {  // the later messages go through the ring
    one.send(i);
    two.send(100 + i);
    CHECK(one.recv() == Value(100 + i));
    CHECK(two.recv() == Value(i));
  }
}

TEST_CASE("a message with a channel keeps its place among small messages") {
  auto [here, there] = Channel::pair(passed_checked);
  std::vector<Channel> kept;
  for (int i = 0; i < 40; ++i) {
    here.send(i);
    if (i % 5 == 4) {
      auto [mine, yours] = Channel::pair(passed_checked);
      here.send({{"end", std::move(yours)}, {"number", i}});
      mine.send(i);
      kept.push_back(std::move(mine));
    }
  }
  for (int i = 0; i < 40; ++i) {
    CHECK(there.recv() == Value(i));
    if (i % 5 != 4) continue;
    const Value message = there.recv();
    CHECK(message["number"] == Value(i));
    Channel end(message["end"], passed_checked);
    CHECK(end.recv() == Value(i));
  }
}

TEST_CASE("ends that are not used are closed, and leave no descriptor") {
  const std::size_t before = open_descriptors();
  {
    auto [here, there] = Channel::pair(passed_checked);
    auto [mine, yours] = Channel::pair(passed_checked);
    here.send({{"end", std::move(yours)}});
    SUBCASE("the message is dropped") { (void)there.recv(); }
    SUBCASE("the message is discarded") {
      there.discard_received();
      there.pump();
    }
    SUBCASE("the message is not received") { there.close(); }
    CHECK_THROWS_WITH_AS((void)mine.recv({.timeout_s = 10}), doctest::Contains("closed the channel"), EndOfStream);
  }
  {
    auto [mine, yours] = Channel::pair(passed_checked);
    {
      const Value unsent = std::move(yours);
    }
    CHECK_THROWS_AS((void)mine.recv({.timeout_s = 10}), EndOfStream);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a worker that dies closes the ends that it holds") {
  Worker victim(relay);
  auto [mine, yours] = Channel::pair();
  victim.send({{"peer", std::move(yours)}});
  victim.send(1);
  CHECK(mine.recv({.timeout_s = 60}) == Value(1));  // it has taken the end
  victim.kill(SIGKILL);
  CHECK_THROWS_AS((void)mine.recv({.timeout_s = 60}), EndOfStream);
}

TEST_CASE("an end is sent once, unused, and to a process of this machine") {
  auto [here, there] = Channel::pair(passed_checked);
  auto [mine, yours] = Channel::pair(passed_checked);
  mine.send(1);
  CHECK_THROWS_WITH_AS(here.send({{"end", std::move(mine)}}), doctest::Contains("it was used here"), UsageError);
  const Value end = std::move(yours);
  CHECK_THROWS_WITH_AS(here.send(Value::list({end, end})), doctest::Contains("was sent before"), UsageError);
  here.send(end);
  CHECK_THROWS_WITH_AS(here.send(end), doctest::Contains("was sent before"), UsageError);
  CHECK_THROWS_WITH_AS(yours.send(1), doctest::Contains("sent to another process"), EndOfStream);

  const Value received = there.recv();
  Channel taken(received, passed_checked);
  CHECK(taken.recv() == Value(1));
  CHECK_THROWS_WITH_AS(Channel{received}, doctest::Contains("taken from its message before"), UsageError);
  CHECK_THROWS_WITH_AS(Channel{Value("text")}, doctest::Contains("a channel was expected"), UsageError);

  const auto [one, other] = tcp_ends();
  Channel far(one, passed_checked), remote(other, passed_checked);
  auto [left, right] = Channel::pair(passed_checked);
  CHECK_THROWS_WITH_AS(far.send({{"end", std::move(left)}}), doctest::Contains("it is reached through TCP"),
                       UsageError);
}

TEST_CASE("seventeen channels do not fit into a message, and sixteen do") {
  auto [here, there] = Channel::pair(passed_checked);
  std::vector<Channel> kept;
  List ends;
  for (int i = 0; i < 17; ++i) {
    auto [mine, yours] = Channel::pair(passed_checked);
    kept.push_back(std::move(mine));
    ends.emplace_back(std::move(yours));
  }
  CHECK_THROWS_WITH_AS(here.send(Value(ends)), doctest::Contains("17 channels in one message"), MessageTooLarge);
  ends.pop_back();
  here.send(Value(ends));
  const Value received = there.recv();
  for (std::size_t i = 0; i < 16; ++i) {
    Channel end(received.at(i), passed_checked);
    end.send(i);
    CHECK(kept[i].recv() == Value(i));
  }
}

TEST_CASE("a send that does not wait keeps the channel until there is room") {
  ChannelOptions no_sharing = passed_checked;
  no_sharing.shared_memory = false;
  auto [here, there] = Channel::pair(no_sharing);
  const Value large(Bytes{std::string(8 << 20, 'x')});
  CHECK(!here.send_some(encode(large)));
  std::vector<Channel> kept;
  for (int i = 0; i < 3; ++i) {
    auto [mine, yours] = Channel::pair(passed_checked);
    kept.push_back(std::move(mine));
    const Value end = std::move(yours);
    CHECK(!here.send_some(encode(end)));
  }
  const auto flush_until_one_arrives = [&from = here, &to = there] {
    for (const Patience patience("a message"); !to.ready(); patience.check()) (void)from.flush_some();
  };
  flush_until_one_arrives();
  CHECK(there.recv({.timeout_s = 60}) == large);
  for (int i = 0; i < 3; ++i) {
    flush_until_one_arrives();
    Channel end(there.recv({.timeout_s = 60}), passed_checked);
    end.send(i);
    CHECK(kept[static_cast<std::size_t>(i)].recv({.timeout_s = 60}) == Value(i));
  }
}

TEST_CASE("a descriptor that is no channel is refused") {
  auto [here, there] = Channel::pair(passed_checked);
  here.send(Value(PassedDescriptor::as_array(std::make_shared<PassedDescriptor>(system::open_null()))));
  const Value received = there.recv();
  CHECK_THROWS_WITH_AS(Channel{received}, doctest::Contains("no end of a channel"), ProtocolError);
}

}  // namespace miniray
