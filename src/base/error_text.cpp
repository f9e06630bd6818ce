#include "base/error_text.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace miniray {

std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : typeid(error).name();
}

}  // namespace miniray
