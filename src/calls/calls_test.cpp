#include "miniray/calls.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "calls/call_format.hpp"
#include "miniray/miniray.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

class Counter {
 public:
  explicit Counter(int start) : count_(start) {}
  int increment(int by) { return count_ += by; }
  [[nodiscard]] int value() const { return count_; }

 private:
  int count_;
};

struct OddError {};

Registry& functions() {
  static Registry all = [] {
    Registry made;
    made.add("square", [](double x) { return x * x; })
        .add("echo", [](const Value& value) { return value; })
        .add("raise", [](const std::string& text) { throw std::out_of_range(text); })
        .add("raise_odd", [] { throw OddError(); })
        .add("not_text", [] { return std::string("\xff"); })
        .add("half", [](int x) { return x % 2 == 0 ? Value(x / 2) : Value(std::string("\xff")); })
        .add("sleep_ms", [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); })
        .add("die", [] { kill(getpid(), SIGKILL); });
    made.add_class<Counter, int>("Counter").method("increment", &Counter::increment).method("value", &Counter::value);
    return made;
  }();
  return all;
}

// Answers calls, and sends each message back.
void serve(Handle& handle) {
  answer_calls(handle, functions());
  for (;;) handle.send(handle.recv());
}

// A worker that does nothing until it is told to go on, however slow this process is.
class Stopped {
 public:
  explicit Stopped(Worker& worker) : worker_(worker) { worker.kill(SIGSTOP); }
  void go_on() const { worker_.kill(SIGCONT); }

 private:
  Worker& worker_;
};

template <class Call>
std::string message_of_error(Call call, const char* type = "miniray::UsageError") {
  try {
    call();
  } catch (const CallError& error) {
    CHECK(error.type() == type);
    return error.message();
  }
  FAIL("no error");
  return {};
}

// A call in its own words, for what a Caller does not say.
CallReply reply_to(Worker& worker, CallVerb verb, const Value& body) {
  worker.send(call_message(verb, body, 1));
  const Message reply = worker.receive({.timeout_s = 10, .lane = Lane::calls});
  CHECK(reply.head.number == 1);
  return parse_reply(reply);
}

}  // namespace

TEST_CASE("the header's example, with the program's own functions") {
  registry().add("square", [](double x) { return x * x; });
  Worker worker(serve_calls);
  Caller caller(worker);
  CHECK(caller.call<double>("square", 3) == 9.0);
  const auto future = caller.call_async<double>("square", 4);
  CHECK(future.get() == 16.0);
  CHECK(future.get(0.0) == 16.0);
  CHECK(future.ready());
  CHECK_FALSE(future.cancel());
  worker.close();
  CHECK(worker.wait() == 0);
}

TEST_CASE("a map in one worker: results in order, and of the items that raise, the first") {
  Worker worker(serve_calls);
  Caller caller(worker);
  std::vector<int> items(10'000);
  std::iota(items.begin(), items.end(), 0);
  CHECK(caller.map<int>("test_echo", items) == items);
  CHECK(caller.map("test_echo", std::vector<int>{}).empty());
  CHECK(caller.map("test_square", std::vector<double>{2, 3}) == std::vector<Value>{4.0, 9.0});
  try {
    (void)caller.map<int>("test_raise_at", std::vector<int>{1, 12, 11});
    FAIL("no error");
  } catch (const CallError& error) {
    CHECK(error.type() == "std::out_of_range");
    CHECK(error.message() == "12");
  }
  CHECK_THROWS_AS((void)caller.map<int>("test_pid", items), CallError);
  CHECK_THROWS_AS((void)caller.map<std::string>("test_echo", items), ValueError);
  CHECK(caller.call<int>("test_echo", 1) == 1);
  worker.kill();
  CHECK_THROWS_AS((void)caller.map<int>("test_echo", items), WorkerDied);
}

TEST_CASE("serve_calls does not swallow messages") {
  Worker worker(serve_calls);
  worker.send({{"cmd", "go"}});
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("serve_calls only answers calls"), WorkerError);
}

TEST_CASE("arguments and results of all kinds") {
  Worker worker(serve);
  Caller caller(worker);
  CHECK(caller.call("echo", 1) == Value(1));
  CHECK(caller.call<std::string>("echo", "text") == "text");
  CHECK(caller.call<std::vector<int>>("echo", std::vector<int>{1, 2}) == std::vector<int>{1, 2});
  CHECK(caller.call<std::optional<int>>("echo", nullptr) == std::nullopt);
  caller.call<void>("echo", 1);
  const std::vector<double> numbers(100'000, 0.5);
  const Array array = Array::view<double>(numbers, {1000, 100});
  CHECK(caller.call<Array>("echo", array) == array);
  const std::string long_bytes(100'000, '\x80');
  CHECK(caller.call<Bytes>("echo", Bytes{long_bytes}).data == long_bytes);
  CHECK_THROWS_WITH_AS(caller.call<int>("echo", "x"), "echo was asked for int, and its result is a string: \"x\"",
                       ValueError);
  CHECK_THROWS_WITH_AS(caller.call("echo", std::string("\xff")),
                       "argument 1 of echo: cannot send a string that is not UTF-8 at msg: send miniray::Bytes",
                       Unsendable);
  CHECK(caller.call("echo", 2) == Value(2));
}

TEST_CASE("what a call raises is told, and the worker goes on") {
  Worker worker(serve, {.name = "sums"});
  Caller caller(worker);
  try {
    caller.call("raise", "no such layer");
    FAIL("no error");
  } catch (const CallError& error) {
    CHECK(error.type() == "std::out_of_range");
    CHECK(error.message() == "no such layer");
    CHECK(error.worker() == worker.name());
    CHECK(error.traceback().empty());
    CHECK(std::string(error.what()) == "raise in " + worker.name() + " raised std::out_of_range: no such layer");
  }
  CHECK(message_of_error([&] { caller.call("raise", "\x01"); }, "std::out_of_range") == "\x01");
  // A terminal would obey a control character in the text.
  CHECK_THROWS_WITH_AS(caller.call("raise", "\x1b[2J"), doctest::Contains("raised std::out_of_range: \\x1b[2J"),
                       CallError);
  CHECK(message_of_error([&] { caller.call("raise_odd"); }, "an exception") ==
        "it does not derive from std::exception");
  CHECK(message_of_error([&] { caller.call("not_text"); }, "miniray::Unsendable") ==
        "the result cannot be sent: cannot send a string that is not UTF-8 at msg: send miniray::Bytes");
  CHECK(message_of_error([&] { caller.call("square", "abc"); }) ==
        "square takes (double), and argument 1 is a string: \"abc\"");
  CHECK(message_of_error([&] { caller.call("square", 1, Keywords{{"lr", 0.1}}); }) ==
        "square takes no keyword arguments");
  CHECK(message_of_error([&] { caller.call("sqare"); }) ==
        "there is no function \"sqare\" here; those that are registered: die, echo, half, not_text, raise, raise_odd, "
        "sleep_ms, square. A worker has what was registered when it started: call registry().add before that");
  CHECK(caller.call("square", 2, Keywords{}) == Value(4.0));
}

TEST_CASE("objects live in the worker until they are forgotten") {
  Worker worker(serve);
  Caller caller(worker);
  caller.create("counter", "Counter", 1);
  CHECK(caller.call<int>("counter.increment", 5) == 6);
  CHECK(caller.call<int>("counter.value") == 6);
  caller.create("counter", "Counter", 10);
  CHECK(caller.call<int>("counter.value") == 10);
  CHECK(message_of_error([&] { caller.create("other", "Clock"); }) ==
        "there is no class \"Clock\" here; those that are registered: Counter");
  CHECK(message_of_error([&] { caller.create("other", "Counter", "x"); }) ==
        "Counter takes (int), and argument 1 is a string: \"x\"");
  CHECK(message_of_error([&] { caller.call("counter.reset"); }) ==
        "the object counter has no method of that name: \"counter.reset\"; it has increment, value");
  CHECK(message_of_error([&] { caller.call("counter"); }).starts_with("the object counter has no method"));
  caller.forget("counter");
  CHECK(message_of_error([&] { caller.forget("counter"); }) == "there is no object \"counter\" here; there are: none");
  CHECK(
      message_of_error([&] { caller.call("counter.value"); }) ==
      "there is no function \"counter.value\" here, and no object \"counter\"; registered: die, echo, half, "
      "not_text, raise, raise_odd, sleep_ms, square, Counter; objects: none. A worker has what was registered when it "
      "started: call registry().add before that");
}

TEST_CASE("many calls are under way at once, and their order does not matter") {
  Worker worker(serve);
  Caller caller(worker);
  std::vector<CallFuture<double>> futures;
  for (int i = 0; i < 1000; ++i) futures.push_back(caller.call_async<double>("square", i));
  for (int i = 999; i >= 0; --i) CHECK(futures[static_cast<std::size_t>(i)].get() == static_cast<double>(i) * i);
  CHECK(caller.take_replies() == 0);
}

TEST_CASE("a reply that comes late is not lost") {
  Worker worker(serve);
  Caller caller(worker);
  const Stopped stopped(worker);
  const auto slow = caller.call_async<void>("echo", 1);
  CHECK_FALSE(slow.wait(0.01));
  CHECK_FALSE(slow.ready());
  CHECK_THROWS_WITH_AS(slow.get(0.0), doctest::Contains("has not answered the call of echo after 0 s"), TimeoutError);
  stopped.go_on();
  CHECK(slow.wait(10));
  slow.get(0.0);
}

TEST_CASE("a call that has not begun can be taken back") {
  Worker worker(serve);
  Caller caller(worker);
  caller.create("counter", "Counter", 0);
  const Stopped stopped(worker);
  const auto waiting = caller.call_async<int>("counter.increment", 1);
  CHECK(waiting.cancel());
  CHECK_FALSE(waiting.cancel());
  CHECK(waiting.ready());
  CHECK_THROWS_WITH_AS(waiting.get(), "the call of counter.increment was cancelled", Cancelled);
  stopped.go_on();
  CHECK(caller.call<int>("counter.value") == 0);
  const auto begun = caller.call_async<int>("sleep_ms", 50);
  wait_until_blocked(worker.pid(), "nanosleep");
  CHECK(begun.cancel());
  CHECK(caller.call("echo", 1) == Value(1));
  CHECK(caller.take_replies() == 0);
}

TEST_CASE("when the worker dies, every call hears of it, after the replies that came before") {
  Worker worker(serve);
  Caller caller(worker);
  const Stopped stopped(worker);
  const auto before = caller.call_async<double>("square", 3);
  const auto during = caller.call_async("die");
  const auto after = caller.call_async<double>("square", 4);
  int told = 0;
  after.on_done([&](const CallFuture<double>&) { ++told; });
  stopped.go_on();
  CHECK_THROWS_WITH_AS(after.get(), doctest::Contains("killed by SIGKILL"), WorkerDied);
  CHECK(told == 1);
  CHECK_THROWS_AS((void)during.get(), WorkerDied);
  CHECK(before.get() == 9.0);
  CHECK_THROWS_AS((void)caller.call_async("echo", 1), WorkerDied);
  CHECK_THROWS_AS((void)worker.recv(), WorkerDied);
}

TEST_CASE("a work function that returns or throws leaves no call unanswered") {
  Worker returns([](Handle& handle) {
    answer_calls(handle, functions());
    (void)handle.recv();
  });
  Caller to_returning(returns);
  returns.send(1);
  CHECK_THROWS_AS(to_returning.call("echo", 1), EndOfStream);
  Worker throws([](Handle& handle) {
    (void)handle.recv();
    throw std::runtime_error("enough");
  });
  Caller to_throwing(throws);
  throws.send(1);
  CHECK_THROWS_WITH_AS(to_throwing.call("echo", 1), doctest::Contains("enough"), WorkerError);
}

TEST_CASE("a worker that answers no calls says how it could") {
  Worker worker([](Handle& handle) { (void)handle.recv(); });
  Caller caller(worker);
  CHECK(message_of_error([&] { caller.call("square", 1); }, "UsageError").starts_with("this worker answers no calls"));
}

TEST_CASE("messages and calls pass each other by, and a worker takes them in the order in which they came") {
  Worker worker([](Handle& handle) {
    int seen = 0;
    Registry own;
    own.add("seen", [&seen] { return seen; });
    answer_calls(handle, own);
    for (;;) {
      const Value message = handle.recv();
      ++seen;
      handle.send(message);
    }
  });
  Caller caller(worker);
  std::vector<CallFuture<int>> futures;
  for (int i = 0; i < 50; ++i) {
    futures.push_back(caller.call_async<int>("seen"));
    worker.send(i);
  }
  for (int i = 49; i >= 25; --i) CHECK(futures[static_cast<std::size_t>(i)].get() == i);
  for (int i = 0; i < 50; ++i) CHECK(worker.recv() == Value(i));
  for (int i = 0; i < 25; ++i) CHECK(futures[static_cast<std::size_t>(i)].get() == i);
}

TEST_CASE("callbacks run once, in the call that notices, and may call again") {
  Worker worker(serve);
  Caller caller(worker);
  std::vector<double> results;
  const auto first = caller.call_async<double>("square", 2);
  first.on_done([&](const CallFuture<double>& done) {
    results.push_back(done.get());
    results.push_back(caller.call<double>("square", 3));
  });
  CHECK(caller.call<double>("square", 4) == 16.0);
  CHECK(results == std::vector<double>{4, 9});
  first.on_done([&](const CallFuture<double>&) { results.push_back(0); });
  CHECK(results.size() == 3);
  const auto second = caller.call_async<double>("square", 5);
  second.on_done([](const CallFuture<double>&) { throw std::runtime_error("from a callback"); });
  second.on_done([&](const CallFuture<double>&) { results.push_back(1); });
  CHECK_THROWS_WITH_AS((void)second.get(), "from a callback", std::runtime_error);
  CHECK(second.get() == 25.0);
  (void)caller.take_replies();
  CHECK(results.size() == 4);
}

TEST_CASE("wait_any tells which futures of several workers are done") {
  std::vector<Worker> workers;
  for (int i = 0; i < 3; ++i) workers.emplace_back(serve);
  std::vector<Caller> callers;
  for (Worker& worker : workers) callers.emplace_back(worker);
  std::vector<CallFuture<void>> futures;
  for (Caller& caller : callers) futures.push_back(caller.call_async<void>("sleep_ms", 30'000));
  futures.push_back(callers[1].call_async<void>("echo", 1));
  CHECK(wait_any(futures, 0.05).empty());
  workers[1].send("beside");
  workers[2].kill();
  CHECK(wait_any(futures, 10) == std::vector<std::size_t>{2});
  CHECK_THROWS_AS(futures[2].get(), WorkerDied);
  workers[1].kill();
  workers[0].kill();
  CHECK_FALSE(wait_any(std::vector{futures[1], futures[3]}, 10).empty());
  CHECK_THROWS_AS((void)wait_any(std::vector<CallFuture<void>>{}), UsageError);
}

TEST_CASE("waiting for replies leaves messages to who waits for them") {
  Worker worker(serve);
  Caller caller(worker);
  worker.send("message");
  const std::vector<CallFuture<void>> futures{caller.call_async<void>("sleep_ms", 20)};
  CHECK(wait_any(futures, 10).size() == 1);
  Worker* const waited = &worker;
  CHECK(wait_any(std::span<Worker* const>(&waited, 1), 10).size() == 1);
  CHECK(worker.recv() == Value("message"));
}

TEST_CASE("a Caller that goes gives up its calls") {
  Worker worker(serve);
  std::optional<Caller> caller(worker);
  const auto future = caller->call_async<void>("sleep_ms", 1);
  int told = 0;
  future.on_done([&](const CallFuture<void>&) { ++told; });
  caller.reset();
  CHECK_THROWS_WITH_AS(future.get(), "the Caller that made this call is gone", Cancelled);
  CHECK(told == 0);
}

TEST_CASE("calls in the format's own words") {
  Worker worker(serve);
  const CallReply values = reply_to(worker, CallVerb::map, map_body("half", {2, 3, 4, "x"}));
  CHECK(values.verb == ReplyVerb::values);
  CHECK(values.value == Value::list({1, nullptr, 2, nullptr}));
  REQUIRE(values.failures.size() == 2);
  CHECK(values.failures[0].first == 1);
  CHECK(values.failures[0].second.type == "miniray::Unsendable");
  CHECK(values.failures[1].first == 3);
  CHECK(values.failures[1].second.message == "half takes (int), and argument 1 is a string: \"x\"");
  CHECK(values.ns > 0);
  const auto refused = [&](CallVerb verb, const Value& body) {
    const CallReply reply = reply_to(worker, verb, body);
    CHECK(reply.verb == ReplyVerb::error);
    return reply.failure.message;
  };
  const Value none = List();
  CHECK(refused(CallVerb::define, Value::list({"f", {{"name", "math.sqrt"}}}))
            .starts_with("a C++ worker cannot take a function from its caller"));
  CHECK(refused(CallVerb::create, Value::list({"c", {{"name", nullptr}}, none, nullptr}))
            .starts_with("a C++ worker cannot take a class by value"));
  CHECK(refused(CallVerb::call, Value::list({"echo", {{"pickle", Bytes{"x"}}, {"buffers", none}}, nullptr}))
            .starts_with("echo is C++, and an argument is a pickle, which only Python can read"));
  CHECK(refused(CallVerb::call, Value::list({7, none, nullptr}))
            .starts_with("a C++ worker cannot take a function from its caller"));
  CHECK(reply_to(worker, CallVerb::define, Value::list({7, {{"name", "echo"}, {"check", 0}}})).verb ==
        ReplyVerb::value);
  CHECK(reply_to(worker, CallVerb::call, Value::list({7, Value::list({3}), nullptr})).value == Value(3));
  CHECK(refused(CallVerb::define, Value::list({8, {{"pickle", Bytes{"x"}}}}))
            .starts_with("a C++ worker cannot take a function from its caller"));
  CHECK(refused(CallVerb::call, Value::list({"echo"})) == "this is no call: [\"echo\"]");
  CHECK(refused(CallVerb::call, Value("nonsense")) == "this is no call: \"nonsense\"");
  CHECK(refused(CallVerb::environment, Value(1)) == "this is no call: 1");
  CHECK(refused(static_cast<CallVerb>(7), Value(1)) == "there is no call with the verb 7: 1");
  CHECK(refused(CallVerb::call, Value::list({"echo", 1, nullptr})) == "the arguments of a call are a list, not 1");
  CHECK(refused(CallVerb::call, Value::list({"echo", none, 1})) == "the keyword arguments of a call are a map, not 1");
  CHECK(refused(CallVerb::call, Value::list({"echo", none, nullptr, "much"})) ==
        "memory_bytes is an integer above 0, not \"much\"");
  worker.send(call_message(CallVerb::call, call_body("echo", {1})));  // nobody waits for a reply
  CHECK(reply_to(worker, CallVerb::call, call_body("echo", {2})).value == Value(2));
}

}  // namespace miniray
