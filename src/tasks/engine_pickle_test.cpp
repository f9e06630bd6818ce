// A worker may send pickles only to a pool that takes them, and never as the answer to the pool's own question.
#include "tasks/engine_scene.hpp"

namespace miniray {
namespace {

// Answers every call with a pickle, whatever it was told.
void answer_with_pickles(Handle& handle) {
  while (true) {
    const Message call = handle.channel().receive({.lane = Lane::calls});
    const Value pickle{{"pickle", Bytes{"x"}}, {"buffers", List()}};
    if (call.head.number != 0) send_quick(handle.channel(), call, reply_message(ReplyVerb::pickle, pickle));
  }
}

// Answers like any C++ worker, and says in the environment that it was told to send no pickles.
void tell_what_it_was_told(Handle& handle) {
  handle.set_call_server([](Handle& called, const Message& call) {
    if (parse_call(call).verb == CallVerb::plain) setenv("TOLD_TO_BE_PLAIN", "1", 1);
    if (call.head.number == 0) return;
    const Value told = std::getenv("TOLD_TO_BE_PLAIN") != nullptr;
    send_quick(called.channel(), call, reply_message(ReplyVerb::value, told));
  });
  (void)handle.recv();
}

Task initializer() {
  Task made;
  made.number = -1;
  made.call = call_message(CallVerb::call, call_body("test_square", {2}), -1);
  return made;
}

}  // namespace

TEST_CASE("a member that answers the initializer with a pickle is lost, and only that one") {
  Scene scene{initializer()};
  scene.add_node(2);
  scene.add_worker(answer_with_pickles);
  scene.on_vacancy = nullptr;
  scene.add_worker();
  scene.turn_until("a death at the start", [&] { return scene.count("worker_stillborn") == 1; });
  CHECK(scene.value(scene.submit("test_square", {3})) == Value(9.0));
  CHECK_FALSE(scene.engine.is_broken());
}

TEST_CASE("a pool that takes no pickles says so to its workers, and loses one that sends a pickle all the same") {
  for (const bool pickle : {true, false}) {
    CAPTURE(pickle);
    Scene scene({}, pickle);
    scene.add_node(1);
    scene.add_worker(tell_what_it_was_told);
    CHECK(scene.value(scene.submit("anything")) == Value(!pickle));
  }
  Scene scene({}, false);
  scene.add_node(1);
  scene.add_worker(answer_with_pickles);
  TaskTerms once_more;
  once_more.retries = 1;
  CHECK(scene.value(scene.submit(once_more, "test_square", {3})) == Value(9.0));  // in the worker that replaced it
  CHECK(scene.count("worker_died") == 1);
}

TEST_CASE("a pool that takes pickles hands them on unread") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(answer_with_pickles);
  CHECK(reply_verb(scene.outcome(scene.submit("anything")).reply) == ReplyVerb::pickle);
}

}  // namespace miniray
