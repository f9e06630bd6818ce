// What tasks refer to by number: workers get it before the first task that needs it, and ask for what they lack.
#include <doctest/doctest.h>

#include "tasks/engine_scene.hpp"

namespace miniray {
namespace {

Value unknown_body(const List& missing) {
  return {{"type", "LookupError"}, {"message", "it is not there"}, {"traceback", ""}, {"missing", missing}};
}

// Has nothing that is described by a name alone. A call returns the numbers of what the worker has, in the order in
// which it heard of them.
void serve_what_was_defined(Handle& handle) {
  auto has = std::make_shared<List>();
  auto missing = std::make_shared<std::set<std::int64_t>>();
  handle.set_call_server([has, missing](Handle& called, const Message& call) {
    const CallOrder order = parse_call(call);
    const auto drop = [&] {
      missing->erase(order.name.integer());
      std::erase_if(*has, [&](const Value& number) { return number.integer() == order.name.integer(); });
    };
    if (order.verb == CallVerb::forget) return drop();
    if (order.verb == CallVerb::define) {
      drop();
      if (order.function.find("value") != nullptr)
        has->emplace_back(order.name.integer());
      else
        missing->insert(order.name.integer());
      return;
    }
    Message reply = reply_message(ReplyVerb::value, *has);
    if (!missing->empty())
      reply = reply_message(ReplyVerb::unknown, unknown_body(List(missing->begin(), missing->end())));
    send_quick(called.channel(), call, std::move(reply));
  });
  (void)handle.recv();
}

Message definition(std::int64_t number, bool by_value) {
  const Value described = by_value ? Value{{"value", true}} : Value{{"name", "somewhere.f"}};
  return call_message(CallVerb::define, Value::list({number, described}));
}

std::shared_ptr<TaskFunction> function(std::int64_t number, bool by_value, std::string slot = {}) {
  auto made = std::make_shared<TaskFunction>();
  made->number = number;
  made->by_value = by_value;
  made->slot = std::move(slot);
  made->definition = definition(number, by_value);
  return made;
}

void define_by_value(TaskEngine& engine, TaskFunction& redefined) {
  redefined.definition = definition(redefined.number, true);
  redefined.by_value = true;
  ++redefined.revision;
  engine.defined(redefined);
}

Task task_of(std::int64_t number, const std::shared_ptr<TaskFunction>& called, const TaskNeeds& needs = {}) {
  Task made = Scene::task(number, {}, "", {});
  made.function = called;
  if (!needs.empty()) made.needs = std::make_shared<const TaskNeeds>(needs);
  return made;
}

}  // namespace

TEST_CASE("a task behind one that was answered unknown waits for the function, too") {
  Scene scene;
  scene.add_node(2);
  scene.add_worker(serve_what_was_defined);
  const auto known = function(1, true), asked = function(2, false);
  scene.engine.submit(task_of(1, known));  // so that tasks are known to be quick, and wait behind each other
  (void)scene.outcome(1);
  for (std::int64_t number = 2; number < 10; ++number) scene.engine.submit(task_of(number, asked));
  scene.turn_until("a question for a function", [&] { return !scene.asked_for.empty(); });
  scene.engine.submit(task_of(10, known));  // needs nothing that is missing
  CHECK(scene.value(10) == Value::list({1}));
  define_by_value(scene.engine, *asked);
  for (std::int64_t number = 2; number < 10; ++number) CHECK(scene.value(number) == Value::list({1, 2}));
  CHECK(scene.asked_for == std::vector<std::int64_t>{2});
}

TEST_CASE("what a task needs is sent before its function, and only once") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(serve_what_was_defined);
  const auto called = function(1, true), first = function(2, true), second = function(3, true);
  scene.engine.submit(task_of(1, called, {first, second}));
  CHECK(scene.value(1) == Value::list({2, 3, 1}));
  scene.engine.submit(task_of(2, called, {second, first}));
  CHECK(scene.value(2) == Value::list({2, 3, 1}));
}

TEST_CASE("a task sees the value that a global had when the task was submitted") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(serve_what_was_defined);
  const auto called = function(1, true), old_value = function(2, true, "0:K"), new_value = function(3, true, "0:K");
  scene.engine.submit(task_of(1, called, {old_value}));
  CHECK(scene.value(1) == Value::list({2, 1}));
  scene.engine.submit(task_of(2, called, {new_value}));
  CHECK(scene.value(2) == Value::list({1, 3}));
  scene.engine.submit(task_of(3, called, {old_value}));
  CHECK(scene.value(3) == Value::list({1, 2}));
}

TEST_CASE("a redefined function has new needs, and functions may need each other") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(serve_what_was_defined);
  const auto called = function(1, false), other = function(2, false);
  scene.engine.submit(task_of(1, called));
  scene.turn_until("a question for a function", [&] { return !scene.asked_for.empty(); });
  called->needs = {other};
  other->needs = {called};
  define_by_value(scene.engine, *called);
  scene.turn_until("a second question", [&] { return scene.asked_for.size() == 2; });
  define_by_value(scene.engine, *other);
  CHECK(scene.value(1).list().size() == 2);
}

TEST_CASE("an initializer that a worker does not have is sent by value") {
  const auto first = function(7, false);
  Scene scene(task_of(-1, first));
  scene.add_node(1);
  scene.add_worker(serve_what_was_defined);
  scene.engine.submit(task_of(1, function(1, true)));
  scene.turn_until("a question for a function", [&] { return !scene.asked_for.empty(); });
  CHECK(scene.outcomes.empty());
  define_by_value(scene.engine, *first);
  CHECK(scene.value(1) == Value::list({7, 1}));
}

TEST_CASE("a worker that asks for functions again and again does not keep a task forever") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker([](Handle& handle) {
    handle.set_call_server([](Handle& called, const Message& call) {
      if (parse_call(call).verb != CallVerb::call) return;
      send_quick(called.channel(), call, reply_message(ReplyVerb::unknown, unknown_body({7})));
    });
    (void)handle.recv();
  });
  scene.engine.submit(task_of(1, function(99, true)));
  CHECK(parse_reply(scene.outcome(1).reply).verb == ReplyVerb::unknown);
}

TEST_CASE("a worker that asks for a function which it was never given is lost, with its task") {
  for (const std::int64_t number : {INT64_MIN, std::int64_t{0}, std::int64_t{2}, INT64_MAX}) {
    Scene scene;
    scene.add_node(1);
    scene.add_worker([=](Handle& handle) {
      handle.set_call_server([=](Handle& called, const Message& call) {
        if (parse_call(call).verb != CallVerb::call) return;
        send_quick(called.channel(), call, reply_message(ReplyVerb::unknown, unknown_body({number})));
      });
      (void)handle.recv();
    });
    scene.engine.submit(task_of(1, function(1, true)));
    CHECK(scene.outcome(1).kind == TaskOutcome::Kind::died);
  }
}

TEST_CASE("a task does not wait for its function after the pool has broken down") {
  Scene scene;
  scene.add_node(1);
  const auto worker = scene.add_worker(serve_what_was_defined);
  worker->kill(SIGSTOP);
  scene.engine.submit(task_of(1, function(1, false)));
  scene.poll();
  scene.engine.break_down("nobody is left");
  worker->kill(SIGCONT);
  CHECK(scene.outcome(1).kind == Kind::broken);
  CHECK(scene.outcome(1).text == "nobody is left");
}

}  // namespace miniray
