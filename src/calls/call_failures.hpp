// Makes the exceptions of a C++ caller from the replies to calls and tasks.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "calls/call_format.hpp"
#include "miniray/calls.hpp"

namespace miniray {

/// Returns the exception for a caller of this function; null if the reply has a value.
[[nodiscard]] std::exception_ptr failure_in(CallReply& reply, const std::string& function, const std::string& worker);
/// Returns the exception for a reply to a map that does not hold a value or a failure for each item; null if it does.
[[nodiscard]] std::exception_ptr wrong_values(CallReply& reply, std::size_t items, const std::string& function,
                                              const std::string& worker);
/// Returns the exception for an item of a map that failed.
[[nodiscard]] std::exception_ptr failure_of_item(CallFailure failure, const std::string& function,
                                                 const std::string& worker);
/// Throws an Unsendable that says which argument cannot be sent. `otherwise` knows it only by its place.
[[noreturn]] void unsendable_argument(const std::string& function, const List& arguments, const Unsendable& otherwise);

}  // namespace miniray
