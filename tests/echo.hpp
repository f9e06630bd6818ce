// A work function that sends back what it receives, for the tests of workers.
#pragma once

#include "miniray/handle.hpp"

namespace miniray {

inline void echo(Handle& handle) {
  for (;;) handle.send(handle.recv());
}

}  // namespace miniray
