// Parts of the texts of errors: the text and the type of another exception, and numbers.
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

/// Returns the number with at most 6 digits and without trailing zeros: "0.5", "60".
[[nodiscard]] std::string number_text(double number);

}  // namespace miniray
