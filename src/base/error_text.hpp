// What an exception that was kept for later says.
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

}  // namespace miniray
