// Futures: empty ones, continuations, coroutines, std::future, durations.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "miniray/calls.hpp"
#include "miniray/coroutine.hpp"
#include "miniray/std_future.hpp"
#include "tests/task_functions.hpp"

namespace miniray {
namespace {

using namespace std::chrono_literals;

constexpr auto futures_square = [](double x) { return x * x; };
constexpr auto futures_raise = [](const std::string& text) -> double { throw std::out_of_range(text); };

struct Scene {
  Worker worker{serve_calls};
  Caller caller{worker};
};

// Says in `log` what became of it.
Future<double> sum_of_squares(Caller& caller, double x, double y) {
  const auto a = caller.call_async(futures_square, x), b = caller.call_async(futures_square, y);
  const double first = co_await a;
  co_return first + co_await b;
}

Future<void> follow(CallFuture<void> awaited, std::string& log) {
  try {
    co_await awaited;
    log += "done";
  } catch (const Cancelled&) {
    log += "cancelled";
  }
}

Future<int> raising(Caller& caller) {
  (void)co_await caller.call_async(futures_raise, "no");
  co_return 1;
}

}  // namespace

TEST_CASE("a time is a number of seconds or a duration") {
  static_assert(Seconds(1.5) == 1.5);
  static_assert(Seconds(250ms) == 0.25);
  static_assert(Seconds(std::chrono::minutes(2)) == 120);
  static_assert(Seconds(std::chrono::duration<float>(0.5F)) == 0.5);
  static_assert(Timeout(3ms) == Timeout(0.003));
  static_assert(!Timeout());
  static_assert(std::is_convertible_v<std::optional<double>, Timeout>);
  static_assert(std::is_convertible_v<Timeout, std::optional<double>>);
  Worker worker([](Handle& handle) { (void)handle.recv(); });
  CHECK_THROWS_AS((void)worker.recv({.timeout_s = 1ms}), TimeoutError);
  CHECK_THROWS_AS((void)worker.recv({.timeout_s = 0.001}), TimeoutError);
  CHECK_THROWS_AS((void)worker.wait(1ms), TimeoutError);
  CHECK(wait_any(std::span(&worker, 1), 1ms).empty());
  worker.close(2s);
}

TEST_CASE("a future that refers to nothing says so, and can be assigned to") {
  Scene scene;
  CallFuture<double> future;
  CHECK_FALSE(future.valid());
  const auto says = [](auto call) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("this future refers to no call or task"), UsageError);
  };
  says([&] { (void)future.get(); });
  says([&] { (void)future.wait(0); });
  says([&] { (void)future.ready(); });
  says([&] { (void)future.cancel(); });
  says([&] { future.on_done([](const auto&) {}); });
  says([&] { (void)future.then([](double) {}); });
  says([&] { (void)wait_any(std::vector{future}); });
  says([&] { (void)when_all(future); });
  says([&] { (void)to_std_future(future); });
  future = scene.caller.call_async(futures_square, 2);
  CHECK(future.valid());
  CHECK(future.get() == 4);
  const CallFuture<double> moved = std::move(future);
  says([&] { (void)future.get(); });  // NOLINT(bugprone-use-after-move): that is what is tested
  CHECK(moved.get() == 4);
  const Future<int> local;
  says([&] { (void)local.get(); });
}

TEST_CASE("then: values, failures, void, futures within, and chains") {
  Scene scene;
  const auto nine = scene.caller.call_async(futures_square, 3);
  const Future<std::string> text = nine.then([](double x) { return std::to_string(static_cast<int>(x)); });
  CHECK(text.get() == "9");
  CHECK(text.get() == "9");
  CHECK(nine.then([](double x) { return x + 1; }).then([](double x) { return x * 2; }).get(5s) == 20);
  // A function that returns a future: its result.
  const auto again = nine.then([&](double x) { return scene.caller.call_async(futures_square, x); });
  static_assert(std::is_same_v<decltype(again), const Future<double>>);
  CHECK(again.get() == 81);
  int called = 0;
  const Future<void> none = scene.caller.call_async([] {}).then([&] { ++called; });
  none.get();
  CHECK(called == 1);

  bool skipped = true;
  const auto failed = scene.caller.call_async(futures_raise, "bad").then([&](double) { skipped = false; });
  CHECK_THROWS_WITH_AS(failed.get(), doctest::Contains("bad"), CallError);
  CHECK(skipped);
  const auto thrown = nine.then([](double) -> int { throw std::logic_error("mine"); });
  CHECK_THROWS_WITH_AS((void)thrown.get(), "mine", std::logic_error);
  const auto inner_failed = nine.then([&](double) { return scene.caller.call_async(futures_raise, "inner"); });
  CHECK_THROWS_WITH_AS((void)inner_failed.get(), doctest::Contains("inner"), CallError);
}

TEST_CASE("a continuation runs once, in the call that notices, also if only another future is waited for") {
  Scene scene;
  int called = 0;
  const auto first = scene.caller.call_async(futures_square, 1);
  const auto after = first.then([&](double x) {
    ++called;
    return x;
  });
  CHECK(called == 0);
  CHECK(scene.caller.call_async(futures_square, 2).get() == 4);  // the reply of the first came before
  CHECK(called == 1);
  CHECK(after.get() == 1);
  CHECK(called == 1);
}

TEST_CASE("a Future times out, and can be cancelled") {
  Scene scene;
  const TestFolder folder;
  const auto waits = scene.caller.call_async<void>("test_wait_for", folder.file("go"));
  const auto after = waits.then([] { return 5; });
  CHECK_FALSE(after.ready());
  CHECK_FALSE(after.wait(0));
  CHECK_THROWS_WITH_AS((void)after.get(10ms),
                       doctest::Contains("has not answered the call of test_wait_for after 0.01 s"), TimeoutError);
  const auto behind = scene.caller.call_async(futures_square, 3).then([](double x) { return x; });
  CHECK(behind.cancel());
  CHECK_THROWS_AS((void)behind.get(), Cancelled);
  folder.touch("go");
  CHECK(after.get() == 5);
  CHECK_FALSE(after.cancel());
}

TEST_CASE("when_all has all results, or the first failure; when_any has the first that is done") {
  Scene scene, other;
  const auto a = scene.caller.call_async(futures_square, 3);
  const auto b = other.caller.call_async([](int x) { return std::to_string(x); }, 4);
  const auto c = scene.caller.call_async([] {});
  CHECK(when_all(a, b, c).get() == std::tuple(9.0, std::string("4"), std::monostate()));
  CHECK(when_all(std::vector{a, scene.caller.call_async(futures_square, 5)}).get() == std::vector<double>{9, 25});
  CHECK(when_all(std::vector<CallFuture<double>>()).get().empty());
  when_all(std::vector{c}).get();
  const auto bad =
      when_all(scene.caller.call_async(futures_raise, "first"), scene.caller.call_async(futures_raise, "second"));
  CHECK_THROWS_WITH_AS((void)bad.get(), doctest::Contains("first"), CallError);

  const TestFolder folder;
  const auto waits = scene.caller.call_async<void>("test_wait_for", folder.file("go"));
  const auto quick = other.caller.call_async([] {});
  CHECK(when_any(waits, quick).get(10s) == 1);
  CHECK(when_any(std::vector{waits, quick}).get(10s) == 1);
  CHECK(when_any(waits.then([] { return 1; }), quick.then([] { return 2; })).get(10s) == 1);
  CHECK_FALSE(when_any(std::vector{waits}).wait(1ms));
  CHECK_THROWS_WITH_AS((void)when_any(std::vector<CallFuture<void>>()), doctest::Contains("nothing to wait for"),
                       UsageError);
  folder.touch("go");
  CHECK(when_any(waits).get() == 0);
}

TEST_CASE("coroutines wait for calls, and their futures drive what they wait for") {
  Scene scene;
  CHECK(sum_of_squares(scene.caller, 3, 4).get(10s) == 25);
  const Future<double> future = sum_of_squares(scene.caller, 1, 1);
  CHECK(when_all(future, sum_of_squares(scene.caller, 2, 2)).get() == std::tuple(2.0, 8.0));
  CHECK(future.then([](double x) { return x + 1; }).get() == 3);
  CHECK_THROWS_WITH_AS((void)raising(scene.caller).get(), doctest::Contains("no"), CallError);
  // A coroutine that awaits a coroutine.
  const auto outer = [](Caller& caller) -> Future<double> { co_return 2 * co_await sum_of_squares(caller, 1, 2); };
  CHECK(outer(scene.caller).get() == 10);
  // It goes on in another's wait, and needs nobody to keep its future.
  std::string log;
  const TestFolder folder;
  (void)follow(scene.caller.call_async<void>("test_wait_for", folder.file("go")), log);
  CHECK(log.empty());
  folder.touch("go");
  CHECK(scene.caller.call(futures_square, 2) == 4);
  CHECK(log == "done");
}

TEST_CASE("what waits for a Caller that is destroyed is told so") {
  const TestFolder folder;
  Worker worker(serve_calls);
  auto caller = std::make_unique<Caller>(worker);
  const auto waits = caller->call_async<void>("test_wait_for", folder.file("go"));
  std::string log;
  const Future<void> coroutine = follow(waits, log);
  bool called = false, done = false;
  const auto after = waits.then([&] { called = true; });
  const auto further = after.then([&] { called = true; });
  waits.on_done([&](const auto&) { done = true; });
  const auto deferred = to_std_future(waits);
  caller.reset();
  CHECK(log == "cancelled");
  CHECK(coroutine.ready());
  CHECK_THROWS_AS(after.get(), Cancelled);
  CHECK_THROWS_AS(further.get(), Cancelled);
  CHECK_FALSE(called);
  CHECK_FALSE(done);
  folder.touch("go");
}

TEST_CASE("a future converts to a std::future, which waits in the thread that asks") {
  Scene scene;
  std::future<double> nine = scene.caller.call_async(futures_square, 3);
  CHECK(nine.wait_for(0s) == std::future_status::deferred);
  CHECK(nine.get() == 9);
  std::future<void> nothing = scene.caller.call_async([] {});
  nothing.get();
  std::shared_future<double> shared = scene.caller.call_async(futures_square, 4);
  CHECK(shared.get() == 16);
  std::future<int> after =
      scene.caller.call_async(futures_square, 2).then([](double x) { return static_cast<int>(x); });
  CHECK(after.get() == 4);
  std::future<double> failing = scene.caller.call_async(futures_raise, "bad");
  CHECK_THROWS_AS((void)failing.get(), CallError);
}

// --- Long chains -----------------------------------------------------------------------------------------------------
namespace {

constexpr int chain_length = 20'000;  // with a call of its own for each, this would need more stack than there is

Future<int> chain_after(Future<int> last, int& called) {
  for (int i = 0; i < chain_length; ++i)
    last = last.then([&called](int x) {
      ++called;
      return x + 1;
    });
  return last;
}

// Waits for a coroutine that waits for a coroutine, and so on.
Future<int> one_more(Future<int> inner) { co_return co_await inner + 1; }

Future<int> count_down(Caller& caller, int left) {
  return caller.call_async([](int x) { return x; }, left).then([&caller](int x) -> Future<int> {
    if (x == 0) return caller.call_async([] { return 7; }).then([](int y) { return y; });
    return count_down(caller, x - 1);
  });
}

}  // namespace

TEST_CASE("a long chain of continuations does not use up the stack") {
  const TestFolder folder;  // outlives the worker, which looks for a file in it
  Scene scene;
  int called = 0;
  const auto waits = scene.caller.call_async<void>("test_wait_for", folder.file("go"));
  SUBCASE("if its end is waited for") {
    const Future<int> last = chain_after(waits.then([] { return 0; }), called);
    folder.touch("go");
    CHECK(last.get(60s) == chain_length);
    CHECK(called == chain_length);
  }
  SUBCASE("if its beginning is waited for") {
    const Future<int> last = chain_after(waits.then([] { return 0; }), called);
    folder.touch("go");
    waits.get(60s);
    CHECK(called == chain_length);
    CHECK(last.get() == chain_length);
  }
  SUBCASE("if it is asked whether it is done") {
    const Future<int> last = chain_after(waits.then([] { return 0; }), called);
    folder.touch("go");
    wait_until("the last future", [&] { return last.ready(); });
    CHECK(last.get() == chain_length);
  }
  SUBCASE("if the wait for it ends in a time-out") {
    const Future<int> last = chain_after(waits.then([] { return 0; }), called);
    CHECK_THROWS_AS((void)last.get(0s), TimeoutError);
    Scene other;
    CHECK(when_any(last, other.caller.call_async(futures_square, 1)).get(60s) == 1);
    CHECK(last.cancel());
    CHECK_THROWS_AS((void)last.get(60s), Cancelled);
    CHECK(called == 0);
    folder.touch("go");
  }
  SUBCASE("if the caller is dropped") {
    Future<int> last;
    {
      Worker worker(serve_calls);
      Caller dropped(worker);
      last = chain_after(dropped.call_async([](int x) { return x; }, 1).then([](int x) { return x; }), called);
    }
    CHECK_THROWS_AS((void)last.get(), Cancelled);
    CHECK(called == 0);
    folder.touch("go");
  }
  SUBCASE("if it consists of coroutines") {
    Future<int> last = waits.then([] { return 0; });
    // Fewer, because each of them looks whether one of those before it is done.
    for (int i = 0; i < chain_length / 20; ++i) last = one_more(last);
    folder.touch("go");
    CHECK(last.get(60s) == chain_length / 20);
  }
  SUBCASE("if each continuation returns a future") {
    folder.touch("go");
    CHECK(count_down(scene.caller, chain_length).get(60s) == 7);
  }
}

}  // namespace miniray
