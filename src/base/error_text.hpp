// Returns the text and the type of an exception.
#pragma once

#include <exception>
#include <string>

namespace miniray {

/// Returns what() of a stored exception, which has to derive from std::exception.
inline std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Returns the type's name as in C++ source: "std::out_of_range".
[[nodiscard]] std::string type_name(const std::exception& error);

}  // namespace miniray
