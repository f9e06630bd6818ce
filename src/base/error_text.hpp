// What an exception says: one that was kept for later, and which type it has.
#pragma once

#include <exception>
#include <string>

namespace miniray {

inline std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// As the source has it: "std::out_of_range".
[[nodiscard]] std::string type_name(const std::exception& error);

}  // namespace miniray
