#include "calls/call_format.hpp"

#include <doctest/doctest.h>

#include "miniray/error.hpp"

namespace miniray {
namespace {

void check_same(const Value& body, Codec codec) {
  const Message message = reply_message(body, codec);
  const CallReply whole = parse_reply(message);
  const ReplyHead head = parse_reply_head(message);
  CHECK(head.number == whole.head.number);
  CHECK(head.kind == whole.head.kind);
  CHECK(head.ns == whole.head.ns);
}

}  // namespace

TEST_CASE("a reply's head is read without its value, and says the same") {
  const CallFailure failure{"TypeError", "no", "line 1"};
  const Value value{{"type", Value::list({1, Array::of<double>({1, 2})})}, {"ns", 5}};
  for (const Codec codec : {Codec::msgpack, Codec::json}) {
    check_same(value_body(1, value, 17), codec);
    check_same(values_body(2, {value, nullptr}, {{1, failure}}, 18), codec);
    check_same(error_body(3, failure, 19), codec);
    check_same(dropped_body(4), codec);
    check_same(Value::list({5, "pickle", 20, {{"pickle", Bytes{"x"}}}}), codec);
    check_same(Value::list({-6, "unknown", 1LL << 40, {{"type", ""}, {"message", "m"}, {"traceback", ""}}}), codec);
  }
  const ReplyHead head = parse_reply_head(reply_message(error_body(3, failure, 19), Codec::msgpack));
  CHECK(head.number == 3);
  CHECK(head.kind == ReplyKind::error);
  CHECK(head.ns == 19);
  const CallReply values = parse_reply(reply_message(values_body(2, {1, nullptr}, {{1, failure}}, 18), Codec::msgpack));
  CHECK(values.value == Value::list({1, nullptr}));
  CHECK(values.failures.at(0).first == 1);
  CHECK(values.failures.at(0).second == failure);
}

TEST_CASE("what is no reply is refused") {
  const Value failure{{"type", "a"}, {"message", "b"}, {"traceback", "c"}};
  const List no_replies{
      Value(1),
      Value(List()),
      Value::list({1}),
      Value::list({"1", "value", 1, 2}),
      Value::list({1, "valu", 1, 2}),
      Value::list({1, "value", "1", 2}),
      Value::list({1, 2, 1, 2}),
      Value::list({1, "value"}),
      Value::list({1, "value", 1, 2, 3}),
      Value::list({1, "dropped", 1}),
      Value::list({1, "error", nullptr, failure}),
  };
  const List no_failures{
      Value::list({1, "error", 1, 2}),
      Value::list({1, "error", 2, {{"type", "a"}, {"message", "b"}}}),
      Value::list({1, "error", 2, {{"type", "a"}, {"message", 1}, {"traceback", "c"}}}),
      Value::list({1, "error", 2, {{"type", Value::list({1})}, {"message", "b"}, {"traceback", "c"}}}),
  };
  for (const Value& body : no_failures)
    CHECK_THROWS_AS((void)parse_reply(reply_message(body, Codec::msgpack)), ProtocolError);
  for (const Value& body : no_replies) {
    CAPTURE(body.text());
    CHECK_THROWS_AS((void)parse_reply(reply_message(body, Codec::msgpack)), ProtocolError);
    CHECK_THROWS_AS((void)parse_reply_head(reply_message(body, Codec::msgpack)), ProtocolError);
  }
}

TEST_CASE("long bytes in a call stay where they are until it is sent") {
  const Value body = call_body(1, "f", {Bytes{std::string(100'000, 'x')}}, Map{{"a", 1}});
  const Message message = call_message(body, Codec::msgpack);
  CHECK(message.kind == Message::Kind::call);
  const CallOrder order = parse_call(decode(message));
  CHECK(order.kind == CallOrder::Kind::call);
  CHECK(order.name == "f");
  CHECK(order.arguments.at(0).bytes().size() == 100'000);
  CHECK(order.keywords["a"] == Value(1));
}

}  // namespace miniray
