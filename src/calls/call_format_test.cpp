#include "calls/call_format.hpp"

#include <doctest/doctest.h>

#include "miniray/error.hpp"

namespace miniray {
namespace {

CallReply read(ReplyVerb verb, const Value& body, Codec codec = Codec::msgpack) {
  return parse_reply(reply_message(verb, body, codec));
}

}  // namespace

TEST_CASE("replies are read as they were made") {
  const CallFailure failure{"TypeError", "no", "line 1"};
  const Value value{{"type", Value::list({1, Array::of<double>({1, 2})})}, {"ns", 5}};
  for (const Codec codec : {Codec::msgpack, Codec::json}) {
    CHECK(read(ReplyVerb::value, value, codec).value == value);
    CHECK(read(ReplyVerb::pickle, {{"pickle", Bytes{"x"}}}, codec).verb == ReplyVerb::pickle);
    CHECK(read(ReplyVerb::dropped, Value(), codec).verb == ReplyVerb::dropped);
    CHECK(read(ReplyVerb::error, error_body(failure), codec).failure == failure);
    const CallReply values = read(ReplyVerb::values, values_body({value, nullptr}, {{1, failure}}), codec);
    CHECK(values.value == Value::list({value, nullptr}));
    CHECK(values.failures == ItemFailures{{1, failure}});
    Value unknown = error_body(failure);
    unknown.map().emplace_back("missing", Value::list({3, 4}));
    unknown.map().emplace_back("failed", true);
    const CallReply told = read(ReplyVerb::unknown, unknown, codec);
    CHECK(told.missing == std::vector<std::int64_t>{3, 4});
    CHECK(told.missing_failed);
  }
}

TEST_CASE("what is no reply is refused") {
  const auto refused = [](ReplyVerb verb, const Value& body) {
    CAPTURE(body.text());
    CHECK_THROWS_AS((void)read(verb, body), ProtocolError);
  };
  for (const ReplyVerb verb : {ReplyVerb::error, ReplyVerb::unknown}) {
    refused(verb, 2);
    refused(verb, {{"type", "a"}, {"message", "b"}});
    refused(verb, {{"type", "a"}, {"message", 1}, {"traceback", "c"}});
    refused(verb, {{"type", Value::list({1})}, {"message", "b"}, {"traceback", "c"}});
  }
  refused(ReplyVerb::unknown, {{"type", "a"}, {"message", "b"}, {"traceback", "c"}, {"missing", 1}});
  refused(ReplyVerb::values, Value(1));
  refused(ReplyVerb::values, Value::list({Value(List())}));
  refused(ReplyVerb::values, Value::list({Value(List()), Value::list({1})}));
  refused(ReplyVerb::values, Value::list({Value(List()), Value::list({Value::list({-1, error_body({})})})}));
  Message strange = reply_message(ReplyVerb::value, 1);
  strange.head.verb = 6;
  CHECK_THROWS_AS((void)reply_verb(strange), ProtocolError);
  CHECK_THROWS_AS((void)parse_reply(strange), ProtocolError);
}

TEST_CASE("the call after which no pickles are sent has no parts") {
  CHECK(parse_call(call_message(CallVerb::plain, Value())).verb == CallVerb::plain);
}

TEST_CASE("long bytes in a call stay where they are until it is sent") {
  const Value body = call_body("f", {Bytes{std::string(100'000, 'x')}}, Map{{"a", 1}});
  const Message message = call_message(CallVerb::call, body, 1);
  CHECK(message.kind == Message::Kind::call);
  CHECK(message.head.number == 1);
  const CallOrder order = parse_call(message);
  CHECK(order.verb == CallVerb::call);
  CHECK(order.name == "f");
  CHECK(order.arguments.at(0).bytes().size() == 100'000);
  CHECK(order.keywords["a"] == Value(1));
}

}  // namespace miniray
