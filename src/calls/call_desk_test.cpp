// A desk is checked after each step: that its calls do not contradict each other, and that each has one outcome.
#include "calls/call_desk.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <map>
#include <random>
#include <set>

#include "miniray/calls.hpp"
#include "miniray/supervised_worker.hpp"

namespace miniray {
namespace {

/// What became of the calls of a desk.
struct Outcomes {
  std::map<std::int64_t, int> replies, failures;  // how many, by call
  std::function<void()> on_failure;               // what a settler does
  [[nodiscard]] int count(std::int64_t number) const {
    const auto of = [&](const std::map<std::int64_t, int>& all) { return all.contains(number) ? all.at(number) : 0; };
    return of(replies) + of(failures);
  }
};

class NotingSettler : public CallSettler {
 public:
  NotingSettler(Outcomes& outcomes, std::int64_t number) : outcomes_(outcomes), number_(number) {}
  void on_reply(const Message& reply) override {
    CHECK(reply.head.number == number_);
    ++outcomes_.replies[number_];
  }
  void on_failure(const std::exception_ptr& /*why*/) override {
    ++outcomes_.failures[number_];
    if (outcomes_.on_failure) outcomes_.on_failure();
  }

 private:
  Outcomes& outcomes_;
  std::int64_t number_;
};

class DeskScene {
 public:
  explicit DeskScene(Worker& worker) : desk_(worker) {}

  /// Does something with the desk, and then checks the desk, even if that has thrown.
  template <class Step>
  auto step(Step taken) {
    const struct Checked {
      ~Checked() { desk.check_invariants(); }
      const CallDesk& desk;
    } checked{desk_};
    return taken(desk_);
  }
  std::int64_t begin(const std::string& function, List arguments, CallDesk::Patience patience = {}) {
    return step([&](CallDesk& desk) {
      const std::int64_t number = desk.next_number();
      const Value body = call_body(function, std::move(arguments));
      desk.begin(call_message(CallVerb::call, body, number), std::make_shared<NotingSettler>(outcomes, number),
                 patience);
      return number;
    });
  }
  bool wait(std::int64_t number, const Deadline& deadline = Deadline::in_seconds(60)) {
    return step([&](CallDesk& desk) { return desk.wait(number, deadline); });
  }
  void drop(std::int64_t number) {
    step([&](CallDesk& desk) { desk.drop(number); });
  }
  void take_replies() {
    step([](CallDesk& desk) { desk.take_replies(); });
  }
  void close() {
    step([](CallDesk& desk) { desk.close(std::make_exception_ptr(EndOfStream("closed"))); });
  }

  Outcomes outcomes;

 private:
  CallDesk desk_;
};

}  // namespace

TEST_CASE("a desk settles each call once: by a reply, by the worker's death or by its own end") {
  Worker worker(serve_calls);
  DeskScene scene(worker);
  const std::int64_t answered = scene.begin("test_square", {2});
  CHECK(scene.wait(answered));
  CHECK(scene.outcomes.replies[answered] == 1);
  const std::int64_t dropped = scene.begin("test_square", {3});
  scene.drop(dropped);
  CHECK(scene.wait(dropped));
  const std::int64_t dies = scene.begin("test_die", {});
  const std::int64_t behind = scene.begin("test_square", {4}, CallDesk::Patience::none);
  CHECK(scene.wait(behind));
  CHECK(scene.outcomes.failures[dies] == 1);
  CHECK(scene.outcomes.failures[behind] == 1);
  CHECK(scene.outcomes.count(dropped) == 0);
  CHECK_THROWS_AS((void)scene.begin("test_square", {5}), WorkerDied);
  scene.take_replies();

  Worker other(serve_calls);
  DeskScene closing(other);
  const std::int64_t open = closing.begin("test_square", {2});
  closing.close();
  CHECK(closing.outcomes.failures[open] == 1);
  closing.drop(open);
  closing.take_replies();
  CHECK_THROWS_AS((void)closing.begin("test_square", {5}), UsageError);
}

TEST_CASE("a reply to a call that was not made fails all calls, and the desk does not abort") {
  for (const std::int64_t number : {std::int64_t{1} << 60, std::int64_t{-5}, std::int64_t{0}}) {
    CAPTURE(number);
    Worker worker([number](Handle& handle) {
      (void)handle.channel().receive({.lane = Lane::calls});
      Message reply = reply_message(ReplyVerb::value, Value());
      reply.head.number = number;
      handle.send(reply);
      (void)handle.recv();
    });
    DeskScene scene(worker);
    const std::int64_t made = scene.begin("f", {});
    CHECK(scene.wait(made));
    CHECK(scene.outcomes.failures[made] == 1);
  }
}

TEST_CASE("replies to calls of earlier desks are ignored, however many a worker makes up, until they are too many") {
  Worker worker([](Handle& handle) {
    (void)handle.channel().receive({.lane = Lane::calls});
    for (int i = 0; i < 100'000; ++i) {
      Message reply = reply_message(ReplyVerb::value, Value());
      reply.head.number = 1;
      handle.send(reply);
    }
    (void)handle.recv();
  });
  DeskScene scene(worker);
  const std::int64_t made = scene.begin("f", {});
  CHECK(scene.wait(made));
  CHECK(scene.outcomes.failures[made] == 1);
}

TEST_CASE("a settler may use its desk") {
  SupervisedWorker supervised([] { return Worker(serve_calls); },
                              {.policy = {.max_restarts = 10, .window_s = 1000, .backoff_s = 0}});
  DeskScene scene(supervised.worker());
  std::vector<std::int64_t> later;
  scene.outcomes.on_failure = [&] { later.push_back(scene.begin("test_square", {2})); };
  const std::int64_t dies = scene.begin("test_die", {});
  const std::int64_t behind = scene.begin("test_square", {4});
  CHECK(scene.wait(behind));
  CHECK(scene.wait(dies));
  REQUIRE(later.size() == 2);
  for (const std::int64_t number : later) {
    CHECK(scene.wait(number));
    CHECK(scene.outcomes.replies[number] == 1);
  }
}

TEST_CASE("whatever is done with a desk in whatever order, each call has one outcome, unless it was dropped") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto roll = [&](int sides) { return static_cast<int>(random() % static_cast<unsigned>(sides)); };
    SupervisedWorker supervised([] { return Worker(serve_calls); },
                                {.policy = {.max_restarts = 1000, .window_s = 1000, .backoff_s = 0}});
    DeskScene scene(supervised.worker());
    std::vector<std::int64_t> made;
    std::set<std::int64_t> dropped;
    for (int i = 0; i < 60; ++i) {
      const std::int64_t one_of_them =
          made.empty() ? 0 : made[static_cast<std::size_t>(roll(static_cast<int>(made.size())))];
      try {
        switch (roll(7)) {
          case 0:
            made.push_back(scene.begin("test_die", {}));
            break;
          case 1:
            (void)scene.wait(one_of_them, Deadline::in_ms(roll(2) * 60'000));
            break;
          case 2:
            scene.drop(one_of_them);
            if (scene.outcomes.count(one_of_them) == 0) dropped.insert(one_of_them);
            break;
          case 3:
            scene.take_replies();
            break;
          case 4:
            (void)scene.step([](CallDesk& desk) {
              const Value body = call_body("test_square", {3});
              return desk.ask(call_message(CallVerb::call, body, desk.next_number()));
            });
            break;
          default:
            made.push_back(
                scene.begin("test_square", {i}, roll(2) ? CallDesk::Patience::wait : CallDesk::Patience::none));
        }
      } catch (const WorkerDied&) {  // a call that was not made, or one that was asked
      }
    }
    scene.close();
    for (const std::int64_t number : made) CHECK(scene.outcomes.count(number) == (dropped.contains(number) ? 0 : 1));
  }
}

}  // namespace miniray
