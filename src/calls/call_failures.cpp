#include "calls/call_failures.hpp"

#include <algorithm>

#include "miniray/error.hpp"
#include "miniray/typed_function.hpp"

namespace miniray {

void unsendable_argument(const std::string& function, const List& arguments, const Unsendable& otherwise) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    try {
      (void)encode(arguments[i]);
    } catch (const Unsendable& error) {
      throw Unsendable("argument " + std::to_string(i + 1) + " of " + function + ": " + error.what());
    }
  }
  throw Unsendable(otherwise);
}

std::exception_ptr failure_in(CallReply& reply, const std::string& called, const std::string& worker) {
  const std::string function(detail::spoken_name(called));
  switch (reply.verb) {
    case ReplyVerb::value:
    case ReplyVerb::values:
      return {};
    case ReplyVerb::dropped:
      return std::make_exception_ptr(Cancelled("the call of " + function + " was dropped by " + worker));
    case ReplyVerb::error:
    case ReplyVerb::unknown: {
      CallFailure& failure = reply.failure;
      if (failure.type == out_of_memory_type || failure.type == out_of_memory_type_in_python)
        return std::make_exception_ptr(TaskOutOfMemory(function, worker, std::move(failure.type),
                                                       std::move(failure.message), std::move(failure.traceback)));
      return std::make_exception_ptr(CallError(function, worker, std::move(failure.type), std::move(failure.message),
                                               std::move(failure.traceback)));
    }
    case ReplyVerb::pickle:
      break;
  }
  return std::make_exception_ptr(
      CallError(function, worker, "TypeError",
                "the result is one that only Python can read. Have the function return plain data: numbers, strings, "
                "bytes, lists, dicts, arrays",
                ""));
}

std::exception_ptr wrong_values(CallReply& reply, std::size_t items, const std::string& function,
                                const std::string& worker) {
  if (reply.value.kind() == Value::Kind::map) {  // from Python
    reply.verb = ReplyVerb::pickle;
    return failure_in(reply, function, worker);
  }
  const bool right = reply.verb == ReplyVerb::values && reply.value.kind() == Value::Kind::list &&
                     reply.value.list().size() == items &&
                     std::ranges::all_of(reply.failures, [&](const auto& failed) { return failed.first < items; });
  if (right) return {};
  return std::make_exception_ptr(ProtocolError(worker + " answered a map of " + function + " with something else"));
}

std::exception_ptr failure_of_item(CallFailure failure, const std::string& function, const std::string& worker) {
  CallReply of_item;
  of_item.verb = ReplyVerb::error;
  of_item.failure = std::move(failure);
  return failure_in(of_item, function, worker);
}

}  // namespace miniray
