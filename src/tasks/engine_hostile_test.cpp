// A worker that answers with what no worker sends. The engine loses it, and gives its tasks an outcome.
#include <functional>

#include "base/system.hpp"
#include "tasks/engine_scene.hpp"

namespace miniray {
namespace {

WorkFunction answers_with(std::function<void(Channel&, const Message&)> answer) {
  return [answer](Handle& handle) {
    handle.set_call_server([answer](Handle& called, const Message& call) { answer(called.channel(), call); });
    (void)handle.recv();
  };
}

Message malformed(ReplyVerb verb, std::int64_t number, std::string body) {
  Message reply;
  reply.kind = Message::Kind::reply;
  reply.head = {number, 0, static_cast<std::uint8_t>(verb)};
  reply.body = std::move(body);
  return reply;
}

std::string lost_because(const WorkFunction& work) {
  Scene scene;
  scene.add_node(2);
  scene.add_worker(work);
  (void)scene.submit("f");
  const TaskOutcome& outcome = scene.outcome(1);
  REQUIRE(outcome.kind == TaskOutcome::Kind::died);
  return outcome.certificate->lost;
}

}  // namespace

TEST_CASE("a worker that answers a call which it was not given is lost") {
  const std::string why = lost_because(answers_with([](Channel& channel, const Message& call) {
    channel.send(malformed(ReplyVerb::value, call.head.number + 1'000'000, "\xc0"));
  }));
  CHECK(why.find("answered the call ") != std::string::npos);
  CHECK(why.find("which it was not given") != std::string::npos);
}

TEST_CASE("a worker that answers a call twice is lost, and what it answered first counts") {
  Scene scene;
  scene.add_node(1);
  scene.on_vacancy = {};
  scene.add_worker(answers_with([](Channel& channel, const Message& call) {
    for (int i = 0; i < 2; ++i) channel.send(malformed(ReplyVerb::value, call.head.number, "\xc0"));
  }));
  const std::int64_t number = next_call_number();  // after those of the worker's earlier users
  scene.engine.submit(Scene::task(number, {}, "f", {}));
  CHECK(scene.outcome(number).kind == TaskOutcome::Kind::reply);
  scene.turn_until("the end of the worker", [&] { return scene.engine.census().workers == 0; });
}

TEST_CASE("a worker that sends what only a worker gets, or a verb that does not fit, is lost") {
  CHECK(lost_because(answers_with([](Channel& channel, const Message& call) {
          channel.send(call_message(CallVerb::forget, Value(1), call.head.number));
        })).find("made a call, and a pool answers none") != std::string::npos);
  CHECK(lost_because(answers_with([](Channel& channel, const Message& call) {
          channel.send(drop_message(call.head.number));
        })).find("which only a worker gets") != std::string::npos);
  CHECK(lost_because(answers_with([](Channel& channel, const Message& call) {
          channel.send(malformed(ReplyVerb::values, call.head.number, "\x92\x90\x90"));
        })).find("which is no map") != std::string::npos);
  CHECK(lost_because(answers_with([](Channel& channel, const Message& call) {
          channel.send(malformed(ReplyVerb::dropped, call.head.number, "\xc0"));
        })).find("nobody dropped it") != std::string::npos);
  CHECK(lost_because(answers_with([](Channel& channel, const Message& call) {
          channel.send(malformed(ReplyVerb::unknown, call.head.number, "\xa2\xff\xfe"));
        })).find("is not UTF-8") != std::string::npos);
  CHECK(lost_because(answers_with([](Channel& channel, const Message& call) {
          channel.send(malformed(ReplyVerb::unknown, call.head.number,
                                 std::string(limits::unknown_reply_bytes_max + 1, '\xc0')));
        })).find("bytes about what it does not know") != std::string::npos);
}

TEST_CASE("an engine that cannot go on ends every task, and takes no more") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker([](Handle& handle) { (void)system::poll_one(handle.fileno(), 0, -1); });  // answers nothing
  (void)scene.submit("f");
  (void)scene.submit("f");
  scene.poll();
  scene.engine.fail("there is no more memory");
  (void)scene.submit("f");
  std::size_t broken = 0;
  for (const TaskOutcome& outcome : scene.engine.take_outcomes())
    if (outcome.kind == TaskOutcome::Kind::broken && outcome.text == "there is no more memory") ++broken;
  CHECK(broken == 3);
}

}  // namespace miniray
