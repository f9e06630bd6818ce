#include "calls/call_format.hpp"

#include <array>
#include <optional>

#include "miniray/error.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

constexpr std::array<std::string_view, 6> reply_words{"value", "values", "dropped", "error", "pickle", "unknown"};
constexpr std::array<std::string_view, 3> failure_words{"type", "message", "traceback"};

std::optional<ReplyKind> reply_kind(std::string_view word) {
  for (std::size_t i = 0; i < reply_words.size(); ++i) {
    if (word == reply_words[i]) return static_cast<ReplyKind>(i);
  }
  return std::nullopt;
}

[[noreturn]] void no_reply() { throw ProtocolError("a worker answered a call with what is no reply"); }
void require_reply(bool condition) {
  if (!condition) no_reply();
}

std::size_t length_of(ReplyKind kind) {
  if (kind == ReplyKind::dropped) return 2;
  return kind == ReplyKind::values ? 5 : 4;
}

std::array<std::string*, failure_words.size()> parts_of(CallFailure& failure) {
  return {&failure.type, &failure.message, &failure.traceback};
}

Value failure_value(const CallFailure& failure) {
  return {{"type", to_utf8(failure.type)},
          {"message", to_utf8(failure.message)},
          {"traceback", to_utf8(failure.traceback)}};
}

CallFailure failure_of(const Value& value) {
  require_reply(value.kind() == Value::Kind::map);
  CallFailure failure;
  for (std::size_t i = 0; i < failure_words.size(); ++i) {
    const Value* part = value.find(failure_words[i]);
    require_reply(part != nullptr && part->kind() == Value::Kind::string);
    *parts_of(failure)[i] = part->string();
  }
  return failure;
}

// Not every worker says more than that something is missing.
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

// An initializer list would copy what is moved into it.
template <class... Parts>
Value body_of(Parts&&... parts) {
  List list;
  list.reserve(sizeof...(parts));
  (list.emplace_back(std::forward<Parts>(parts)), ...);
  return list;
}

/// The first elements of a list in MessagePack, read one by one; what follows is not looked at.
class HeadReader {
 public:
  explicit HeadReader(std::string_view body) : rest_(body) {}

  std::size_t list() {
    const std::uint8_t tag = byte();
    require_reply((tag & 0xf0) == 0x90);  // none of them is long
    return tag & 0x0f;
  }
  std::int64_t integer() {
    const std::uint8_t tag = byte();
    if (tag < 0x80 || tag >= 0xe0) return static_cast<std::int8_t>(tag);
    require_reply(tag >= 0xcc && tag <= 0xd3);
    const bool is_signed = tag >= 0xd0;
    const std::size_t bytes = std::size_t{1} << (is_signed ? tag - 0xd0 : tag - 0xcc);
    std::uint64_t value = is_signed && (peek() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | byte();
    return static_cast<std::int64_t>(value);
  }
  std::string_view word() {
    const std::uint8_t tag = byte();
    const std::size_t size = tag & 0x1f;
    require_reply((tag & 0xe0) == 0xa0 && rest_.size() >= size);
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return text;
  }

 private:
  [[nodiscard]] std::uint8_t peek() const {
    require_reply(!rest_.empty());
    return static_cast<std::uint8_t>(rest_.front());
  }
  std::uint8_t byte() {
    const std::uint8_t value = peek();
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view rest_;
};

struct CallShape {
  std::string_view word;
  CallOrder::Kind kind;
  std::size_t length;
  std::size_t pool_length = 0;  // where a pool says more
};
constexpr std::array<CallShape, 6> call_shapes{{{"call", CallOrder::Kind::call, 5, 7},
                                                {"define", CallOrder::Kind::define, 4},
                                                {"create", CallOrder::Kind::create, 6},
                                                {"forget", CallOrder::Kind::forget, 3},
                                                {"environment", CallOrder::Kind::environment, 3},
                                                {"map", CallOrder::Kind::map, 4, 6}}};

const CallShape& shape_of(const List& parts) {
  if (parts.size() >= 3 && parts[1].kind() == Value::Kind::string) {
    for (const CallShape& shape : call_shapes) {
      if (parts[1].string() == shape.word && (parts.size() == shape.length || parts.size() == shape.pool_length))
        return shape;
    }
  }
  throw UsageError("this is no call: " + Value(parts).text());
}

}  // namespace

Value call_body(std::int64_t number, std::string_view name, List arguments, Value keywords) {
  return body_of(number, "call", name, std::move(arguments), std::move(keywords));
}
Value create_body(std::int64_t number, std::string_view name, Value function, List arguments, Value keywords) {
  return body_of(number, "create", name, std::move(function), std::move(arguments), std::move(keywords));
}
Value forget_body(std::int64_t number, std::string_view name) { return body_of(number, "forget", name); }
Value map_body(std::int64_t number, std::string_view name, List items) {
  return body_of(number, "map", name, std::move(items));
}
Value value_body(std::int64_t number, Value value, std::int64_t ns) {
  return body_of(number, "value", ns, std::move(value));
}
Value values_body(std::int64_t number, List values, const std::vector<std::pair<std::size_t, CallFailure>>& failures,
                  std::int64_t ns) {
  List failed;
  failed.reserve(failures.size());
  for (const auto& [index, failure] : failures) failed.push_back(body_of(index, failure_value(failure)));
  return body_of(number, "values", ns, std::move(values), std::move(failed));
}
Value error_body(std::int64_t number, const CallFailure& failure, std::int64_t ns) {
  return body_of(number, "error", ns, failure_value(failure));
}
Value dropped_body(std::int64_t number) { return body_of(number, "dropped"); }
Value function_named(std::string_view name) { return {{"name", name}, {"check", 0}}; }

Message call_message(const Value& body, Codec codec) {
  Message message = encode(body, codec);
  message.kind = Message::Kind::call;
  return message;
}
Message reply_message(const Value& body, Codec codec) {
  Message message = encode(body, codec);
  message.kind = Message::Kind::reply;
  return message;
}
Message drop_message(std::int64_t number) {
  Message message = encode(Value(number));
  message.kind = Message::Kind::drop;
  return message;
}

std::int64_t call_number(const Value& body) {
  if (body.kind() != Value::Kind::list || body.list().empty() || body.list()[0].kind() != Value::Kind::integer)
    throw ProtocolError("the coordinator sent a call without a number: " + body.text());
  return body.list()[0].integer();
}

CallOrder parse_call(Value body) {
  List& parts = body.list();
  const CallShape& shape = shape_of(parts);
  CallOrder order;
  order.number = parts[0].integer();
  order.kind = shape.kind;
  order.name = std::move(parts[2]);
  if (order.kind == CallOrder::Kind::environment) return order;
  if (parts.size() == shape.pool_length) {
    if (parts.back().kind() != Value::Kind::integer) throw UsageError("a lease is a time, not " + parts.back().text());
    order.lease_ns = parts.back().integer();
  }
  if (order.kind == CallOrder::Kind::call && parts.size() == shape.pool_length && !parts[5].is_null())
    throw UsageError("a C++ worker cannot limit a task's memory: submit it without memory_bytes");
  if (order.kind == CallOrder::Kind::map && parts.size() == shape.pool_length) order.star = parts[4] == Value(true);
  if (order.name.kind() != Value::Kind::string && order.name.kind() != Value::Kind::integer)
    throw UsageError("a function's name is a string, not " + order.name.text());
  if (order.kind == CallOrder::Kind::define || order.kind == CallOrder::Kind::create)
    order.function = std::move(parts[3]);
  if (order.kind == CallOrder::Kind::map) order.arguments = std::move(parts[3]);
  if (order.kind == CallOrder::Kind::call || order.kind == CallOrder::Kind::create) {
    order.arguments = std::move(parts[shape.length - 2]);
    order.keywords = std::move(parts[shape.length - 1]);
  }
  return order;
}

ReplyHead parse_reply_head(const Message& reply) {
  if (reply.codec == Codec::json) return parse_reply(reply).head;
  HeadReader reader(reply.body);
  ReplyHead head;
  const std::size_t length = reader.list();
  require_reply(length >= 2);
  head.number = reader.integer();
  const std::optional<ReplyKind> kind = reply_kind(reader.word());
  require_reply(kind && length == length_of(*kind));
  head.kind = *kind;
  if (*kind != ReplyKind::dropped) head.ns = reader.integer();
  return head;
}

CallReply parse_reply(const Message& reply) {
  Value body = decode(reply);
  require_reply(body.kind() == Value::Kind::list);
  List& parts = body.list();
  require_reply(parts.size() >= 2 && parts[0].kind() == Value::Kind::integer && parts[1].kind() == Value::Kind::string);
  const std::optional<ReplyKind> kind = reply_kind(parts[1].string());
  require_reply(kind && parts.size() == length_of(*kind));

  CallReply result;
  result.head.number = parts[0].integer();
  result.head.kind = *kind;
  if (*kind == ReplyKind::dropped) return result;
  require_reply(parts[2].kind() == Value::Kind::integer);
  result.head.ns = parts[2].integer();
  if (*kind == ReplyKind::error || *kind == ReplyKind::unknown)
    result.failure = failure_of(parts[3]);
  else
    result.value = std::move(parts[3]);
  if (*kind == ReplyKind::unknown) {
    result.missing = missing_in(parts[3]);
    const Value* failed = parts[3].find("failed");
    result.missing_failed = failed != nullptr && failed->kind() == Value::Kind::boolean && failed->boolean();
  }
  if (*kind == ReplyKind::values) {
    require_reply(parts[4].kind() == Value::Kind::list);
    for (const Value& failed : parts[4].list()) {
      require_reply(failed.kind() == Value::Kind::list && failed.list().size() == 2 &&
                    failed.list()[0].kind() == Value::Kind::integer && failed.list()[0].integer() >= 0);
      result.failures.emplace_back(failed.list()[0].integer(), failure_of(failed.list()[1]));
    }
  }
  return result;
}

}  // namespace miniray
