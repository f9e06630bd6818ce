// What tasks refer to by number: workers hear of it before the first task that needs it, and ask for what they lack.
#include <doctest/doctest.h>

#include "tasks/engine_scene.hpp"

namespace miniray {
namespace {

Value unknown_body(std::int64_t number, const List& missing) {
  const Value text{{"type", "LookupError"}, {"message", "it is not there"}, {"traceback", ""}, {"missing", missing}};
  return Value::list({number, "unknown", 1000, text});
}

// Has nothing that is described by a name alone. A call returns the numbers of what the worker has, in the order in
// which it heard of them.
void serve_what_was_defined(Handle& handle) {
  auto has = std::make_shared<List>();
  auto missing = std::make_shared<std::set<std::int64_t>>();
  handle.set_call_server([has, missing](Handle& called, const Message& call) {
    const CallOrder order = parse_call(decode(call));
    const auto drop = [&] {
      missing->erase(order.name.integer());
      std::erase_if(*has, [&](const Value& number) { return number.integer() == order.name.integer(); });
    };
    if (order.kind == CallOrder::Kind::forget) return drop();
    if (order.kind == CallOrder::Kind::define) {
      drop();
      if (order.function.find("value") != nullptr)
        has->emplace_back(order.name.integer());
      else
        missing->insert(order.name.integer());
      return;
    }
    Value reply = value_body(order.number, *has, 1000);
    if (!missing->empty()) reply = unknown_body(order.number, List(missing->begin(), missing->end()));
    called.channel().send(reply_message(reply, Codec::msgpack));
  });
  (void)handle.recv();
}

Message definition(std::int64_t number, bool by_value) {
  const Value described = by_value ? Value{{"value", true}} : Value{{"name", "somewhere.f"}};
  Message made = encode(Value::list({0, "define", number, described}));
  made.kind = Message::Kind::call;
  return made;
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
  scene.turn_until([&] { return !scene.asked_for.empty(); });
  scene.engine.submit(task_of(10, known));  // needs nothing that is missing
  CHECK(scene.value(10) == Value::list({1}));
  define_by_value(scene.engine, *asked);
  for (std::int64_t number = 2; number < 10; ++number) CHECK(scene.value(number) == Value::list({1, 2}));
  CHECK(scene.asked_for == std::vector<std::int64_t>{2});
}

TEST_CASE("what a task needs comes before its function, and only once") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(serve_what_was_defined);
  const auto called = function(1, true), first = function(2, true), second = function(3, true);
  scene.engine.submit(task_of(1, called, {first, second}));
  CHECK(scene.value(1) == Value::list({2, 3, 1}));
  scene.engine.submit(task_of(2, called, {second, first}));
  CHECK(scene.value(2) == Value::list({2, 3, 1}));
}

TEST_CASE("of the values of one global, a worker has the one that its task was submitted with") {
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

TEST_CASE("needs of what was redefined, and needs of each other") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker(serve_what_was_defined);
  const auto called = function(1, false), other = function(2, false);
  scene.engine.submit(task_of(1, called));
  scene.turn_until([&] { return !scene.asked_for.empty(); });
  called->needs = {other};
  other->needs = {called};
  define_by_value(scene.engine, *called);
  scene.turn_until([&] { return scene.asked_for.size() == 2; });
  define_by_value(scene.engine, *other);
  CHECK(scene.value(1).list().size() == 2);
}

TEST_CASE("an initializer that a worker does not have is sent by value") {
  const auto first = function(7, false);
  Scene scene(task_of(-1, first));
  scene.add_node(1);
  scene.add_worker(serve_what_was_defined);
  scene.engine.submit(task_of(1, function(1, true)));
  scene.turn_until([&] { return !scene.asked_for.empty(); });
  CHECK(scene.outcomes.empty());
  define_by_value(scene.engine, *first);
  CHECK(scene.value(1) == Value::list({7, 1}));
}

TEST_CASE("a worker that never has enough does not keep a task for ever") {
  Scene scene;
  scene.add_node(1);
  scene.add_worker([](Handle& handle) {
    handle.set_call_server([](Handle& called, const Message& call) {
      const CallOrder order = parse_call(decode(call));
      if (order.kind != CallOrder::Kind::call) return;
      called.channel().send(reply_message(unknown_body(order.number, {99}), Codec::msgpack));
    });
    (void)handle.recv();
  });
  scene.engine.submit(task_of(1, function(1, true)));
  CHECK(parse_reply(scene.outcome(1).reply).head.kind == ReplyKind::unknown);
}

}  // namespace miniray
