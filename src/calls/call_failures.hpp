// What the replies to calls and tasks mean to a C++ caller: a value, or an exception.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "calls/call_format.hpp"
#include "miniray/calls.hpp"

namespace miniray {

/// Why the caller of this function gets no value out of the reply; nothing if it does.
[[nodiscard]] std::exception_ptr failure_in(CallReply& reply, const std::string& function, const std::string& worker);
/// Why a reply to a map of so many items holds no values; nothing if it does, but for items that failed.
[[nodiscard]] std::exception_ptr wrong_values(CallReply& reply, std::size_t items, const std::string& function,
                                              const std::string& worker);
/// What one of the items of a map raised.
[[nodiscard]] std::exception_ptr failure_of_item(CallFailure failure, const std::string& function,
                                                 const std::string& worker);
/// Says which argument cannot be sent, which the message's own error knows only by its place.
[[noreturn]] void unsendable_argument(const std::string& function, const List& arguments, const Unsendable& otherwise);

}  // namespace miniray
