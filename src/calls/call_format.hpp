// Encodes and decodes the bodies of calls and of their replies, as docs/wire_format.md describes them. Input is
// untrusted.
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

/// A decoded call.
struct CallOrder {
  CallVerb verb = CallVerb::call;
  Value name;          ///< a string or an integer; for environment, the variables
  Value function;      ///< for define and create
  Value arguments;     ///< for call and create, a list or a pickle; for map, the items
  Value keywords;      ///< for call and create: null or a map
  Value memory_bytes;  ///< for call: null or an integer
  bool star = false;   ///< for map: each item is a list of arguments
};

/// A decoded reply.
struct CallReply {
  ReplyVerb verb = ReplyVerb::value;
  std::int64_t ns = 0;                ///< how long the call took in the worker
  CallFailure failure;                ///< for error and unknown
  std::vector<std::int64_t> missing;  ///< for unknown: the numbers of the definitions that the worker does not have
  bool missing_failed = false;        ///< the worker could not make one of them from the value that it was sent
  Value value;                        ///< for value, values and pickle
  ItemFailures failures;              ///< for values
};

// These functions make bodies. They move their arguments into the body.
[[nodiscard]] Value call_body(Value name, List arguments, Value keywords = {},
                              std::optional<std::uint64_t> memory_bytes = {});
[[nodiscard]] Value create_body(std::string_view name, Value function, List arguments, Value keywords = {});
[[nodiscard]] Value map_body(Value name, List items, bool star = false);
[[nodiscard]] Value values_body(List values, const ItemFailures& failures);
[[nodiscard]] Value error_body(const CallFailure& failure);
/// Describes a class or function that the worker finds by its name.
[[nodiscard]] Value function_named(std::string_view name);

/// The name that C++ and Python workers give to the failure of a call that needed more than its memory_bytes.
inline constexpr const char* out_of_memory_type = "miniray::TaskOutOfMemory";
inline constexpr const char* out_of_memory_type_in_python = "miniray.errors.TaskOutOfMemory";

// Messages. Like encode(), they borrow from the body, which must outlive them.
/// Returns a number for a call or a task. No number is used twice in this process, so a reply to a call of an earlier
/// Caller or Pool is never taken for the reply to a later call of the same worker. Any thread may call it.
[[nodiscard]] std::int64_t next_call_number();
/// Makes a call. The number 0 says that the caller does not wait for a reply.
[[nodiscard]] Message call_message(CallVerb verb, const Value& body, std::int64_t number = 0,
                                   Codec codec = Codec::msgpack);
/// Makes a reply. Its number and its time are set when it is sent.
[[nodiscard]] Message reply_message(ReplyVerb verb, const Value& body, Codec codec = Codec::msgpack);
[[nodiscard]] Message drop_message(std::int64_t number);

/// Decodes a call. Throws UsageError, which says what is wrong, if the message is not a valid call.
[[nodiscard]] CallOrder parse_call(const Message& call);
/// Returns the verb of a reply. Throws ProtocolError if there is no such verb. It does not check the body.
[[nodiscard]] ReplyVerb reply_verb(const Message& reply);
/// Decodes a reply. Throws ProtocolError if the message is not a valid reply.
[[nodiscard]] CallReply parse_reply(const Message& reply);

}  // namespace miniray
