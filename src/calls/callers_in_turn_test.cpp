// Callers that use one worker, one after another.
#include <doctest/doctest.h>

#include <optional>
#include <utility>
#include <vector>

#include "calls/call_format.hpp"
#include "miniray/calls.hpp"
#include "tests/task_functions.hpp"

namespace miniray {
namespace {

constexpr auto in_turn_same = [](int x) { return x; };

// Makes calls that wait for the file "go", and leaves them to a Caller that is gone.
void begin_and_leave(Worker& worker, const TestFolder& folder, int calls) {
  Caller caller(worker);
  for (int i = 0; i < calls; ++i) (void)caller.call_async<Value>("test_wait", folder.file("begun"), folder.file("go"));
  folder.wait_for("begun");
}

}  // namespace

TEST_CASE("a Caller never gets the reply to a call of an earlier one") {
  const TestFolder folder;
  Worker worker(serve_calls);
  begin_and_leave(worker, folder, 3);
  Caller caller(worker);
  const auto first = caller.call_async(in_turn_same, 1);
  const auto second = caller.call_async(in_turn_same, 2);
  CHECK_FALSE(first.ready());
  folder.touch("go");
  CHECK(first.get(20.0) == 1);
  CHECK(second.get(20.0) == 2);
  CHECK(caller.call(in_turn_same, 3) == 3);
  CHECK(caller.take_replies() == 0);
}

TEST_CASE("a reply to a call that nobody has made is an error as before") {
  Worker worker([](Handle& handle) {
    (void)handle.recv();
    Message stray = reply_message(ReplyVerb::value, Value(1));
    stray.head.number = 1'000'000'000'000;
    handle.channel().send(stray);
    (void)handle.recv();
  });
  Caller caller(worker);
  worker.send("go");
  const auto future = caller.call_async<int>("any");
  CHECK_THROWS_WITH_AS((void)future.get(20.0), doctest::Contains("which was not made here"), ProtocolError);
}

TEST_CASE("a worker has one Caller at a time, also when it is moved") {
  Worker worker(serve_calls);
  std::optional<Caller> caller(worker);
  const char* const text = "has a Caller already; use that one, or destroy it first";
  CHECK_THROWS_WITH_AS(Caller{worker}, doctest::Contains(text), UsageError);
  Caller moved = std::move(*caller);
  CHECK_THROWS_WITH_AS(Caller{worker}, doctest::Contains(text), UsageError);
  caller.reset();  // it was moved from, and has no say
  Worker elsewhere = std::move(worker);
  CHECK_THROWS_WITH_AS(Caller{elsewhere}, doctest::Contains(text), UsageError);
  CHECK(moved.call(in_turn_same, 1) == 1);
  const auto kept = moved.call_async(in_turn_same, 2);  // a future does not keep its Caller's place
  Worker other(serve_calls);
  moved = Caller(other);
  CHECK_THROWS_AS(kept.get(), Cancelled);
  CHECK(Caller(elsewhere).call(in_turn_same, 3) == 3);
}

}  // namespace miniray
