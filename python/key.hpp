// A key that Python code passes on and cannot read: it is never a str, which would stay in memory.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "channel/authentication.hpp"

namespace miniray::python {

struct KeyHandle {
  std::shared_ptr<const Key> key;
};

/// Returns the key of an argument: that of a _Key, or the one that a str has in hexadecimal digits; null for "".
[[nodiscard]] std::shared_ptr<const Key> key_from(nanobind::handle argument);

}  // namespace miniray::python
