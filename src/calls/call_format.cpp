#include "calls/call_format.hpp"

#include <array>
#include <optional>

#include "miniray/error.hpp"
#include "wire/json_reader.hpp"
#include "wire/msgpack_reader.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

constexpr std::array<std::string_view, 5> reply_words{"value", "values", "dropped", "error", "pickle"};
constexpr std::array<std::string_view, 3> failure_words{"type", "message", "traceback"};

std::optional<ReplyKind> reply_kind(std::string_view word) {
  for (std::size_t i = 0; i < reply_words.size(); ++i) {
    if (word == reply_words[i]) return static_cast<ReplyKind>(i);
  }
  return std::nullopt;
}

/// Where the time stands, and thus how many come before it.
std::size_t position_of_ns(ReplyKind kind) {
  if (kind == ReplyKind::dropped) return 2;
  return kind == ReplyKind::values ? 4 : 3;
}

[[noreturn]] void no_reply() { throw ProtocolError("a worker answered a call with what is no reply"); }
void require_reply(bool condition) {
  if (!condition) no_reply();
}

/// A reply may leave out its time. Dropped calls have none.
void require_length(ReplyKind kind, std::size_t length) {
  const std::size_t with_ns = position_of_ns(kind) + (kind == ReplyKind::dropped ? 0 : 1);
  require_reply(length == with_ns || length == position_of_ns(kind));
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

// An initializer list would copy what is moved into it.
template <class... Parts>
Value body_of(Parts&&... parts) {
  List list;
  list.reserve(sizeof...(parts));
  (list.emplace_back(std::forward<Parts>(parts)), ...);
  return list;
}

/// A sink that takes note of all but the value. Depth 1 is the list itself, depth 2 an error's map.
class ReplyScan {
 public:
  void null() { other(); }
  void boolean(bool) { other(); }
  void real(double) { other(); }
  void unsigned_integer(std::uint64_t) { other(); }
  void bytes(std::string_view) { other(); }
  void bytes_beside() { other(); }
  void array(Array::Form, DType, const Shape&) { other(); }

  void integer(std::int64_t value) {
    if (depth_ == 1 && length_ == 0) {
      head_.number = value;
      return item();
    }
    if (depth_ == 1 && length_ >= 2 && length_ == position_of_ns(head_.kind)) {
      head_.ns = value;
      return item();
    }
    other();
  }
  void string(std::string_view value) {
    if (depth_ == 1 && length_ == 1) {
      const std::optional<ReplyKind> kind = reply_kind(value);
      require_reply(kind.has_value());
      head_.kind = *kind;
      return item();
    }
    if (depth_ != 2 || !in_failure_) return other();
    if (expects_key_) {
      key_ = value;
      expects_key_ = false;
      return;
    }
    expects_key_ = true;
    if (std::string* part = wanted_part()) *part = value;
  }
  void begin_list(std::size_t) { begin(false); }
  void end_list() { end(); }
  void begin_map(std::size_t, bool) { begin(true); }
  void end_map() { end(); }

  [[nodiscard]] ReplyHead finish() {
    require_reply(began_ && length_ >= 2);
    require_length(head_.kind, length_);
    require_reply(head_.kind != ReplyKind::error || (seen_[0] && seen_[1] && seen_[2]));
    return std::move(head_);
  }

 private:
  void item() { ++length_; }

  // Which part of the failure the value of this key is, if it is one and the first.
  std::string* wanted_part() {
    for (std::size_t i = 0; i < failure_words.size(); ++i) {
      if (key_ == failure_words[i] && !std::exchange(seen_[i], true)) return parts_of(head_.failure)[i];
    }
    return nullptr;
  }

  // What is none of the things that are looked for, and must not stand in their place.
  void other() {
    require_reply(depth_ > 0);
    if (depth_ == 1) {
      require_reply(length_ >= 2 && length_ != position_of_ns(head_.kind));
      require_reply(head_.kind != ReplyKind::error);
      item();
    } else if (depth_ == 2 && in_failure_) {
      if (expects_key_)
        key_.clear();
      else
        require_reply(wanted_part() == nullptr);
      expects_key_ = !expects_key_;
    }
  }
  void begin(bool map) {
    if (depth_ == 0) {
      require_reply(!map);
      began_ = true;
    } else if (depth_ == 1 && length_ == 2 && head_.kind == ReplyKind::error) {
      require_reply(map);
      in_failure_ = expects_key_ = true;
      item();
    } else {
      other();
    }
    ++depth_;
  }
  void end() {
    if (--depth_ == 1) in_failure_ = false;
  }

  ReplyHead head_;
  std::size_t depth_ = 0, length_ = 0;
  bool began_ = false, in_failure_ = false, expects_key_ = false;
  std::array<bool, failure_words.size()> seen_{};
  std::string key_;
};

struct CallShape {
  std::string_view word;
  CallOrder::Kind kind;
  std::size_t length;
};
constexpr std::array<CallShape, 5> call_shapes{{{"call", CallOrder::Kind::call, 5},
                                                {"define", CallOrder::Kind::define, 4},
                                                {"create", CallOrder::Kind::create, 6},
                                                {"forget", CallOrder::Kind::forget, 3},
                                                {"map", CallOrder::Kind::map, 4}}};

const CallShape& shape_of(const List& parts) {
  if (parts.size() >= 3 && parts[1].kind() == Value::Kind::string) {
    for (const CallShape& shape : call_shapes) {
      if (parts[1].string() == shape.word && parts.size() == shape.length) return shape;
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
  return body_of(number, "value", std::move(value), ns);
}
Value values_body(std::int64_t number, List values, const std::vector<std::pair<std::size_t, CallFailure>>& failures,
                  std::int64_t ns) {
  List failed;
  failed.reserve(failures.size());
  for (const auto& [index, failure] : failures) failed.push_back(body_of(index, failure_value(failure)));
  return body_of(number, "values", std::move(values), std::move(failed), ns);
}
Value error_body(std::int64_t number, const CallFailure& failure, std::int64_t ns) {
  return body_of(number, "error", failure_value(failure), ns);
}
Value dropped_body(std::int64_t number) { return body_of(number, "dropped"); }
Value function_named(std::string_view name) {
  return {{"name", name}, {"check", 0}, {"pickle", nullptr}, {"why", "the caller is a C++ program"}};
}

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
  ReplyScan scan;
  if (reply.codec == Codec::json)
    read_json(reply.body, scan);
  else
    read_msgpack(reply.body, scan);
  return scan.finish();
}

CallReply parse_reply(const Message& reply) {
  Value body = decode(reply);
  require_reply(body.kind() == Value::Kind::list);
  List& parts = body.list();
  require_reply(parts.size() >= 2 && parts[0].kind() == Value::Kind::integer && parts[1].kind() == Value::Kind::string);
  const std::optional<ReplyKind> kind = reply_kind(parts[1].string());
  require_reply(kind.has_value());
  require_length(*kind, parts.size());

  CallReply result;
  result.head.number = parts[0].integer();
  result.head.kind = *kind;
  if (const std::size_t at = position_of_ns(*kind); at < parts.size()) {
    require_reply(parts[at].kind() == Value::Kind::integer);
    result.head.ns = parts[at].integer();
  }
  if (*kind == ReplyKind::error) {
    result.head.failure = failure_of(parts[2]);
  } else if (*kind != ReplyKind::dropped) {
    result.value = std::move(parts[2]);
  }
  if (*kind == ReplyKind::values) {
    require_reply(parts[3].kind() == Value::Kind::list);
    for (const Value& failed : parts[3].list()) {
      require_reply(failed.kind() == Value::Kind::list && failed.list().size() == 2 &&
                    failed.list()[0].kind() == Value::Kind::integer && failed.list()[0].integer() >= 0);
      result.failures.emplace_back(failed.list()[0].integer(), failure_of(failed.list()[1]));
    }
  }
  return result;
}

}  // namespace miniray
