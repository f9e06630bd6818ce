// The bodies of calls and of their replies, as docs/wire_format.md has them: made, and read by who trusts nobody.
#pragma once

#include <cstdint>
#include <optional>
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
using ItemFailures = std::vector<std::pair<std::size_t, CallFailure>>;  ///< by the item's position

/// A call, read.
struct CallOrder {
  CallVerb verb = CallVerb::call;
  Value name;          ///< a string, or an integer; of environment: the variables
  Value function;      ///< of define and create
  Value arguments;     ///< of call and create: a list, or a pickle; of map: the items
  Value keywords;      ///< of call and create: null or a map
  Value memory_bytes;  ///< of call: null or an integer
  bool star = false;   ///< of map: each item is a list of arguments
};

/// A reply, read.
struct CallReply {
  ReplyVerb verb = ReplyVerb::value;
  std::int64_t ns = 0;                ///< how long the call took there
  CallFailure failure;                ///< of error and unknown
  std::vector<std::int64_t> missing;  ///< of unknown: numbers of what the worker does not have
  bool missing_failed = false;        ///< one of them was sent by value, and could not be made
  Value value;                        ///< of value, values and pickle
  ItemFailures failures;              ///< of values
};

// Bodies. Their arguments are moved into them.
[[nodiscard]] Value call_body(Value name, List arguments, Value keywords = {},
                              std::optional<std::uint64_t> memory_bytes = {});
[[nodiscard]] Value create_body(std::string_view name, Value function, List arguments, Value keywords = {});
[[nodiscard]] Value map_body(Value name, List items, bool star = false);
[[nodiscard]] Value values_body(List values, const ItemFailures& failures);
[[nodiscard]] Value error_body(const CallFailure& failure);
/// Describes a class or function that the worker finds by its name.
[[nodiscard]] Value function_named(std::string_view name);

/// The type of the failure of a call that wanted more than its memory_bytes, as C++ and Python workers call it.
inline constexpr const char* out_of_memory_type = "miniray::TaskOutOfMemory";
inline constexpr const char* out_of_memory_type_in_python = "miniray.errors.TaskOutOfMemory";

// Messages. Like encode(), they borrow from the body, which must outlive them.
/// Returns a number for a call or a task. No number comes twice in this process, so a reply to a call of an earlier
/// Caller or Pool is never taken for the reply to a later call of the same worker. Any thread may call it.
[[nodiscard]] std::int64_t next_call_number();
/// Makes a call. With the number 0 nobody waits for a reply.
[[nodiscard]] Message call_message(CallVerb verb, const Value& body, std::int64_t number = 0,
                                   Codec codec = Codec::msgpack);
/// Makes a reply. Its number and its time are set when it is sent.
[[nodiscard]] Message reply_message(ReplyVerb verb, const Value& body, Codec codec = Codec::msgpack);
[[nodiscard]] Message drop_message(std::int64_t number);

/// Reads a call. Throws UsageError, which says what is wrong with it, if it is none.
[[nodiscard]] CallOrder parse_call(const Message& call);
/// Returns the verb of a reply. Throws ProtocolError if there is no such verb. The body may still be anything.
[[nodiscard]] ReplyVerb reply_verb(const Message& reply);
/// Reads a reply. Throws ProtocolError if it is none.
[[nodiscard]] CallReply parse_reply(const Message& reply);

}  // namespace miniray
