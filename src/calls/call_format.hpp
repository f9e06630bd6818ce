// The bodies of calls and of their replies, as docs/wire_format.md has them: made, and read by who trusts nobody.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "miniray/message.hpp"
#include "miniray/value.hpp"

namespace miniray {

/// What a call raised.
struct CallFailure {
  std::string type, message, traceback;
  friend bool operator==(const CallFailure&, const CallFailure&) = default;
};

struct CallOrder {
  enum class Kind : std::uint8_t { call, define, create, forget, environment, map };
  std::int64_t number = 0;  ///< 0: nobody waits for a reply
  Kind kind = Kind::call;
  Value name;                 ///< a string, or an integer; of environment: the variables
  Value function;             ///< of define and create
  Value arguments;            ///< of call and create: a list, or a pickle; of map: the items
  Value keywords;             ///< of call and create: null or a map
  std::int64_t lease_ns = 0;  ///< until when it may begin; 0: whenever
  bool star = false;          ///< of map: each item is a list of arguments
};

enum class ReplyKind : std::uint8_t { value, values, dropped, error, pickle, unknown };

/// What a reply begins with.
struct ReplyHead {
  std::int64_t number = 0;
  ReplyKind kind = ReplyKind::value;
  std::int64_t ns = 0;  ///< how long it took there
};
struct CallReply {
  ReplyHead head;
  CallFailure failure;                                        ///< of error and unknown
  std::vector<std::int64_t> missing;                          ///< of unknown: numbers of what the worker does not have
  bool missing_failed = false;                                ///< one of them was sent by value, and could not be made
  Value value;                                                ///< of value, values and pickle
  std::vector<std::pair<std::size_t, CallFailure>> failures;  ///< of values
};

// Bodies. What they are given is moved into them.
[[nodiscard]] Value call_body(std::int64_t number, std::string_view name, List arguments, Value keywords = {});
[[nodiscard]] Value create_body(std::int64_t number, std::string_view name, Value function, List arguments,
                                Value keywords = {});
[[nodiscard]] Value forget_body(std::int64_t number, std::string_view name);
[[nodiscard]] Value map_body(std::int64_t number, std::string_view name, List items);
[[nodiscard]] Value value_body(std::int64_t number, Value value, std::int64_t ns);
[[nodiscard]] Value values_body(std::int64_t number, List values,
                                const std::vector<std::pair<std::size_t, CallFailure>>& failures, std::int64_t ns);
[[nodiscard]] Value error_body(std::int64_t number, const CallFailure& failure, std::int64_t ns);
[[nodiscard]] Value dropped_body(std::int64_t number);
/// A class or function that the worker finds by its name.
[[nodiscard]] Value function_named(std::string_view name);

// Messages. Like encode(), they borrow from the body, which must outlive them.
[[nodiscard]] Message call_message(const Value& body, Codec codec);
[[nodiscard]] Message reply_message(const Value& body, Codec codec);
[[nodiscard]] Message drop_message(std::int64_t number);

/// The number in a decoded call. ProtocolError if there is none, and thus nobody who could be told.
[[nodiscard]] std::int64_t call_number(const Value& body);
/// UsageError if it is no call, with what is wrong with it. The number is known to be there.
[[nodiscard]] CallOrder parse_call(Value body);
/// Reads no further than it must: the rest may be anything. ProtocolError if it is no reply.
[[nodiscard]] ReplyHead parse_reply_head(const Message& reply);
/// ProtocolError if it is no reply.
[[nodiscard]] CallReply parse_reply(const Message& reply);

}  // namespace miniray
