// One suite for every kind of channel: what goes in at one end comes out at the other, bit for bit, whatever carries
// it.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <thread>

#include "miniray/miniray.hpp"
#include "tests/tcp_ends.hpp"
#include "tests/value_generator.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

std::pair<Channel, Channel> tcp_pair(const ChannelOptions& options) {
  const std::pair<int, int> ends = tcp_ends();
  return {Channel(ends.first, options), Channel(ends.second, options)};
}

struct Kind {
  const char* name;
  bool tcp, shared_memory;
  Codec codec;
};
constexpr Kind kinds[] = {
    {"socketpair, shared memory, msgpack", false, true, Codec::msgpack},
    {"socketpair, shared memory, json", false, true, Codec::json},
    {"socketpair, stream only, msgpack", false, false, Codec::msgpack},
    {"socketpair, stream only, json", false, false, Codec::json},
    {"tcp, msgpack", true, true, Codec::msgpack},
    {"tcp, json", true, true, Codec::json},
};

std::pair<Channel, Channel> connect(const Kind& kind, ChannelOptions options = {}) {
  options.codec = kind.codec;
  options.shared_memory = kind.shared_memory;
  options.check_invariants = true;
  return kind.tcp ? tcp_pair(options) : Channel::pair(options);
}

#define FOR_EVERY_CHANNEL(...)                                     \
  for (const Kind& kind : kinds) {                                 \
    INFO(std::string(kind.name));                                  \
    auto [here, there] = connect(kind __VA_OPT__(, ) __VA_ARGS__); \
    check_channel(here, there);                                    \
  }

// Sends and receives by turns, so that one thread can do both with a message that fits no socket buffer.
Value transfer(Channel& here, Channel& there, const Value& value) {
  bool sent = here.send_some(encode(value, here.codec()));
  std::optional<Message> arrived;
  for (const Patience patience("the message"); !(arrived = there.try_receive()); patience.check())
    if (!sent) sent = here.flush_some();
  return decode(*arrived);
}

Array numbers(std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<double>(i) * 0.5;
  return Array::of(std::move(values));
}

}  // namespace

TEST_CASE("every type arrives as it was sent") {
  const double nan_with_payload = std::bit_cast<double>(0x7ff8dead00000001ULL);
  const std::vector<Value> values{Value(),
                                  Value(true),
                                  Value(false),
                                  Value(0),
                                  Value(-1),
                                  Value(std::numeric_limits<std::int64_t>::min()),
                                  Value(std::numeric_limits<std::int64_t>::max()),
                                  Value(std::numeric_limits<std::uint64_t>::max()),
                                  Value(0.0),
                                  Value(-0.0),
                                  Value(1.0),
                                  Value(0.1),
                                  Value(1e308),
                                  Value(5e-324),
                                  Value(std::nan("")),
                                  Value(nan_with_payload),
                                  Value(std::numeric_limits<double>::infinity()),
                                  Value(-std::numeric_limits<double>::infinity()),
                                  Value(""),
                                  Value("text"),
                                  Value(std::string("nul\0inside", 10)),
                                  Value("\"quoted\\\" \n\t\x01 é 漢 😀"),
                                  Value(Bytes{}),
                                  Value(Bytes{std::string("\x00\xff\x80", 3)}),
                                  Value(Bytes{std::string(100'000, '\xfe')}),
                                  Value(List{}),
                                  Value(Map{}),
                                  Value::list({1, "two", 3.0, nullptr}),
                                  Value{{"a", 1}, {"b", Value{{"c", Value::list({})}}}},
                                  Value(Map{{Value(1), Value("int key")},
                                            {Value(true), Value("bool key")},
                                            {Value(), Value("null key")},
                                            {Value(1.5), Value("real key")},
                                            {Value(Bytes{"b"}), Value("bytes key")}}),
                                  Value{{"$array", "not an escape"}},
                                  Value{{"$map", Value{{"$float", "x"}}}},
                                  Value(Array::zeros<float>({0})),
                                  Value(Array::zeros<double>({3, 0, 2})),
                                  Value(numbers(1)),
                                  Value(numbers(100'000)),
                                  Value(List(1000, Value(0.5))),
                                  Value(List(1000, Value(-7))),
                                  Value(List(1000, Value(std::numeric_limits<std::uint64_t>::max())))};
  const auto check_channel = [&](Channel& here, Channel& there) {
    for (const Value& value : values) {
      CAPTURE(value.text());
      CHECK(transfer(here, there, value) == value);
    }
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("arrays keep their dtype and shape, zero dimensions included") {
  const auto check_channel = [](Channel& here, Channel& there) {
    for (std::uint8_t code = 0; code < dtype_count; ++code) {
      const auto dtype = static_cast<DType>(code);
      for (const Shape& shape : {Shape{}, Shape{1}, Shape{2, 3, 4}, Shape{0}, Shape{1, 0, 5}}) {
        Buffer buffer = Buffer::allocate(Array::element_count(shape) * item_bytes(dtype));
        for (std::size_t i = 0; i < buffer.size; ++i) buffer.data[i] = static_cast<std::byte>(i);
        const Value value(Array(dtype, shape, buffer));
        here.send(value);
        CHECK(there.recv() == value);
      }
    }
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("random messages from a seed arrive as they were sent") {
  const auto check_channel = [](Channel& here, Channel& there) {
    ValueGenerator generator(20'240'601);
    for (int i = 0; i < 10'000; ++i) {
      const Value value = generator.message();
      const Value arrived = transfer(here, there, value);
      if (!(arrived == value)) FAIL("message " << i << ": " << value.text() << " arrived as " << arrived.text());
    }
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("two ends that both send more than the sockets hold do not wait for each other") {
  const auto check_channel = [](Channel& here, Channel& there) {
    const Value value{{"numbers", numbers(200'000)}, {"bytes", Bytes{std::string(2'000'000, 'x')}}};
    const auto talk = [&](Channel& channel) {
      for (int i = 0; i < 50; ++i) channel.send(value);
      for (int i = 0; i < 50; ++i) CHECK(channel.recv() == value);
    };
    std::thread other([&] { talk(there); });
    talk(here);
    other.join();
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("a time-out in the middle of a message loses nothing") {
  const auto check_channel = [](Channel& here, Channel& there) {
    CHECK_THROWS_AS((void)there.recv({.timeout_s = 0.01}), TimeoutError);
    std::string text;
    text.resize(16'000'000, 'x');  // in the body, and more than any socket buffer holds
    const Value value(text);
    Message message = encode(value, here.codec());
    REQUIRE_FALSE(here.send_some(message));  // the first part only
    CHECK_THROWS_AS((void)there.recv({.timeout_s = 0.0}), TimeoutError);
    CHECK_THROWS_AS((void)there.recv({.timeout_s = 0.01}), TimeoutError);
    std::thread sender([&] { wait_until("room for the rest", [&] { return here.flush_some(); }); });
    CHECK(there.recv() == value);
    sender.join();
    here.send(Value("next"));
    CHECK(there.recv() == Value("next"));
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("a message above max_size stays for a later call") {
  const auto check_channel = [](Channel& here, Channel& there) {
    const Value large{{"a", numbers(5'000)}};
    here.send(large);
    here.send(Value("small"));
    CHECK_THROWS_WITH_AS((void)there.recv({.max_size = 1000}), doctest::Contains("call recv again with a larger"),
                         MessageTooLarge);
    CHECK_THROWS_AS((void)there.recv({.max_size = 1000}), MessageTooLarge);
    CHECK(there.recv() == large);
    CHECK(there.recv({.max_size = 1000}) == Value("small"));
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("values that cannot be sent name their place, and the channel is still good") {
  const auto check_channel = [](Channel& here, Channel& there) {
    CHECK_THROWS_WITH_AS(here.send(Value{{"batch", Value::list({1, 2, std::string("\xff")})}}),
                         "cannot send a string that is not UTF-8 at msg[\"batch\"][2]: send miniray::Bytes",
                         Unsendable);
    Map map;
    map.emplace_back(Value::list({1}), Value(2));
    CHECK_THROWS_WITH_AS(here.send(Value(map)), "cannot send a list as a key at msg[[1]]", Unsendable);
    Value deep;
    for (std::size_t i = 0; i < limits::depth_max + 1; ++i) deep = Value::list({deep});
    CHECK_THROWS_WITH_AS(here.send(deep), doctest::Contains("nested deeper than 256 levels"), Unsendable);
    Value allowed;
    for (std::size_t i = 0; i < limits::depth_max; ++i) allowed = Value::list({allowed});
    here.send(allowed);
    CHECK(there.recv() == allowed);
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("the end of the stream comes after what was sent") {
  const auto check_channel = [](Channel& here, Channel& there) {
    here.send(Value(1));
    here.send(Value(numbers(5'000)));
    here.close();
    CHECK(there.recv() == Value(1));
    CHECK(there.recv() == Value(numbers(5'000)));
    CHECK_THROWS_AS((void)there.recv(), EndOfStream);
    CHECK_THROWS_AS((void)here.recv(), EndOfStream);
    CHECK_THROWS_WITH_AS(here.send(Value(1)), doctest::Contains("was closed by this process"), EndOfStream);
    const auto send_until_refused = [&] {
      for (int i = 0; i < 100; ++i) there.send(Value(i));
    };
    CHECK_THROWS_AS(send_until_refused(), EndOfStream);
  };
  FOR_EVERY_CHANNEL()
}

TEST_CASE("a full inbox is an error, not a standstill, and the stream stays in step") {
  ChannelOptions small;
  small.inbox_bytes_max = 1'000'000;
  const auto check_channel = [](Channel& here, Channel& there) {
    const Value value(std::string(400'000, 'x'));
    const Message message = encode(value, here.codec());
    std::thread other([&] {  // sends ten messages and receives nothing
      bool sent = true;
      for (int i = 0; i < 10; ++i) sent = there.send_some(message);
      if (!sent) wait_until("room for ten messages", [&] { return there.flush_some(); });
    });
    int sent = 0;
    const auto flood = [&] {
      for (;; ++sent) here.send(value);
    };
    CHECK_THROWS_WITH_AS(flood(), doctest::Contains("Call recv() between sends"), InboxFull);
    for (int i = 0; i < 10; ++i) CHECK(here.recv() == value);
    other.join();
    std::thread reader([&] {
      for (Value next; (next = there.recv()) != Value("in step");) CHECK(next == value);
    });
    here.send("in step");
    reader.join();
  };
  FOR_EVERY_CHANNEL(small)
}

TEST_CASE("signals do not disturb a channel") {
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, &before);
  const auto check_channel = [](Channel& here, Channel& there) {
    const itimerval often{{0, 1000}, {0, 1000}}, off{};
    setitimer(ITIMER_REAL, &often, nullptr);
    const Value value{{"a", numbers(20'000)}, {"text", std::string(300'000, 'x')}};
    std::thread other([&] {
      for (int i = 0; i < 20; ++i) there.send(there.recv());
    });
    for (int i = 0; i < 20; ++i) {
      here.send(value);
      CHECK(here.recv() == value);
    }
    other.join();
    setitimer(ITIMER_REAL, &off, nullptr);
  };
  FOR_EVERY_CHANNEL()
  sigaction(SIGALRM, &before, nullptr);
}

TEST_CASE("an interrupt may end a wait, and the channel goes on") {
  static std::atomic<bool> raise_now = false;
  struct Interrupted {};
  ChannelOptions options;
  options.on_interrupt = [] {
    if (raise_now.exchange(false)) throw Interrupted();
  };
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, &before);
  const auto check_channel = [](Channel& here, Channel& there) {
    const pthread_t self = pthread_self();
    const auto interrupt_soon = [self, thread = gettid()] {
      return std::thread([self, thread] {
        wait_until_blocked(thread);
        raise_now = true;
        pthread_kill(self, SIGUSR1);
      });
    };
    std::thread first = interrupt_soon();
    CHECK_THROWS_AS((void)here.recv(), Interrupted);
    first.join();
    std::thread second = interrupt_soon();
    const Value large(std::string(5'000'000, 'y'));
    CHECK_THROWS_AS(here.send(large), Interrupted);  // nobody reads it yet
    second.join();
    std::thread reader([&] {
      CHECK(there.recv() == large);  // a part had gone out, so the rest follows
      CHECK(there.recv() == Value("after"));
    });
    here.send(Value("after"));
    reader.join();
  };
  FOR_EVERY_CHANNEL(options)
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("two threads in one channel are refused") {
  std::pair<Channel, Channel> ends = Channel::pair();
  std::thread blocked([&] {
    for (bool received = false; !received;) {
      try {
        (void)ends.first.recv();
        received = true;
      } catch (const UsageError&) {  // the other thread was first, for a moment
        std::this_thread::yield();
      }
    }
  });
  const auto try_often = [&] {
    for (;;) {
      (void)ends.first.try_receive();
      std::this_thread::yield();
    }
  };
  CHECK_THROWS_WITH_AS(try_often(), doctest::Contains("in use by another thread"), UsageError);
  ends.second.send(Value());
  blocked.join();
}

}  // namespace miniray
