#include "calls/call_format.hpp"

#include <array>
#include <atomic>

#include "miniray/error.hpp"
#include "miniray/limits.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

constexpr std::array<std::string_view, 3> failure_words{"type", "message", "traceback"};

void require_reply(bool condition) {
  if (!condition) throw ProtocolError("a worker answered a call with what is no reply");
}

Value failure_value(const CallFailure& failure) {
  return {{"type", to_utf8(failure.type)},
          {"message", to_utf8(failure.message)},
          {"traceback", to_utf8(failure.traceback)}};
}

CallFailure failure_of(const Value& value) {
  require_reply(value.kind() == Value::Kind::map);
  CallFailure failure;
  const std::array<std::string*, failure_words.size()> parts{&failure.type, &failure.message, &failure.traceback};
  for (std::size_t i = 0; i < failure_words.size(); ++i) {
    const Value* part = value.find(failure_words[i]);
    require_reply(part != nullptr && part->kind() == Value::Kind::string);
    *parts[i] = part->string();
  }
  return failure;
}

// Some workers only say that something is missing, and not what.
std::vector<std::int64_t> missing_in(const Value& value) {
  std::vector<std::int64_t> numbers;
  const Value* listed = value.find("missing");
  if (listed == nullptr) return numbers;
  require_reply(listed->kind() == Value::Kind::list);
  for (const Value& number : listed->list()) {
    require_reply(number.kind() == Value::Kind::integer);
    numbers.push_back(number.integer());
  }
  return numbers;
}

ItemFailures failures_in(const Value& value) {
  require_reply(value.kind() == Value::Kind::list);
  ItemFailures failures;
  for (const Value& failed : value.list()) {
    require_reply(failed.kind() == Value::Kind::list && failed.list().size() == 2 &&
                  failed.list()[0].kind() == Value::Kind::integer && failed.list()[0].integer() >= 0);
    failures.emplace_back(failed.list()[0].integer(), failure_of(failed.list()[1]));
  }
  return failures;
}

// An initializer list would copy what is moved into it.
template <class... Parts>
Value body_of(Parts&&... parts) {
  List list;
  list.reserve(sizeof...(parts));
  (list.emplace_back(std::forward<Parts>(parts)), ...);
  return list;
}

[[noreturn]] void no_call(const Value& body) { throw UsageError("this is no call: " + body.text()); }

List& parts_in(Value& body, std::size_t least, std::size_t most) {
  if (body.kind() != Value::Kind::list || body.list().size() < least || body.list().size() > most) no_call(body);
  return body.list();
}

Value name_of(Value name) {
  if (name.kind() != Value::Kind::string && name.kind() != Value::Kind::integer)
    throw UsageError("a function's name is a string, not " + name.text());
  return name;
}

}  // namespace

Value call_body(Value name, List arguments, Value keywords, std::optional<std::uint64_t> memory_bytes) {
  if (!memory_bytes) return body_of(std::move(name), std::move(arguments), std::move(keywords));
  return body_of(std::move(name), std::move(arguments), std::move(keywords), static_cast<std::int64_t>(*memory_bytes));
}
Value create_body(std::string_view name, Value function, List arguments, Value keywords) {
  return body_of(name, std::move(function), std::move(arguments), std::move(keywords));
}
Value map_body(Value name, List items, bool star) { return body_of(std::move(name), std::move(items), star); }
Value values_body(List values, const ItemFailures& failures) {
  List failed;
  failed.reserve(failures.size());
  for (const auto& [index, failure] : failures) failed.push_back(body_of(index, failure_value(failure)));
  return body_of(std::move(values), std::move(failed));
}
Value error_body(const CallFailure& failure) { return failure_value(failure); }
Value function_named(std::string_view name) { return {{"name", name}, {"check", 0}}; }

std::int64_t next_call_number() {
  static std::atomic<std::int64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Message call_message(CallVerb verb, const Value& body, std::int64_t number, Codec codec) {
  Message message = encode(body, codec);
  message.kind = Message::Kind::call;
  message.head = {number, 0, static_cast<std::uint8_t>(verb)};
  return message;
}
Message reply_message(ReplyVerb verb, const Value& body, Codec codec) {
  Message message = encode(body, codec);
  message.kind = Message::Kind::reply;
  message.head.verb = static_cast<std::uint8_t>(verb);
  return message;
}
Message drop_message(std::int64_t number) {
  Message message;
  message.kind = Message::Kind::drop;
  message.head.number = number;
  return message;
}

CallOrder parse_call(const Message& call) {
  Value body = decode(call);
  CallOrder order;
  order.verb = static_cast<CallVerb>(call.head.verb);
  switch (order.verb) {
    case CallVerb::call: {
      List& parts = parts_in(body, 3, 4);
      order.name = name_of(std::move(parts[0]));
      order.arguments = std::move(parts[1]);
      order.keywords = std::move(parts[2]);
      if (parts.size() == 4) order.memory_bytes = std::move(parts[3]);
      return order;
    }
    case CallVerb::map: {
      List& parts = parts_in(body, 3, 3);
      order.name = name_of(std::move(parts[0]));
      order.arguments = std::move(parts[1]);
      order.star = parts[2] == Value(true);
      return order;
    }
    case CallVerb::define: {
      List& parts = parts_in(body, 2, 2);
      order.name = name_of(std::move(parts[0]));
      order.function = std::move(parts[1]);
      return order;
    }
    case CallVerb::create: {
      List& parts = parts_in(body, 4, 4);
      order.name = name_of(std::move(parts[0]));
      order.function = std::move(parts[1]);
      order.arguments = std::move(parts[2]);
      order.keywords = std::move(parts[3]);
      return order;
    }
    case CallVerb::forget:
      order.name = name_of(std::move(body));
      return order;
    case CallVerb::environment:
      if (body.kind() != Value::Kind::map) no_call(body);
      order.name = std::move(body);
      return order;
    case CallVerb::plain:
      return order;
  }
  throw UsageError("there is no call with the verb " + std::to_string(call.head.verb) + ": " + body.text());
}

ReplyVerb reply_verb(const Message& reply) {
  require_reply(reply.head.verb <= static_cast<std::uint8_t>(ReplyVerb::dropped));
  return static_cast<ReplyVerb>(reply.head.verb);
}

namespace {

CallReply read_reply(const Message& reply) {
  CallReply result;
  result.verb = reply_verb(reply);
  result.ns = reply.head.time_ns;
  if (result.verb == ReplyVerb::dropped) return result;
  Value body = decode(reply);
  switch (result.verb) {
    case ReplyVerb::unknown: {
      result.failure = failure_of(body);
      result.missing = missing_in(body);
      const Value* failed = body.find("failed");
      result.missing_failed = failed != nullptr && failed->kind() == Value::Kind::boolean && failed->boolean();
      break;
    }
    case ReplyVerb::error:
      result.failure = failure_of(body);
      break;
    case ReplyVerb::values:
      require_reply(body.kind() == Value::Kind::list && body.list().size() == 2);
      result.failures = failures_in(body.list()[1]);
      result.value = std::move(body.list()[0]);
      break;
    case ReplyVerb::value:
    case ReplyVerb::pickle:
    case ReplyVerb::dropped:
      result.value = std::move(body);
      break;
  }
  return result;
}

}  // namespace

CallReply parse_reply(const Message& reply) {
  try {
    return read_reply(reply);
  } catch (const ProtocolError& error) {
    const std::string sent = text_of(reply.codec, std::string_view(reply.body).substr(0, limits::recent_message_bytes));
    throw ProtocolError(std::string(error.what()) + "; the reply to call " + std::to_string(reply.head.number) +
                        " begins with: " + (sent.empty() ? "nothing that can be shown" : sent));
  }
}

}  // namespace miniray
