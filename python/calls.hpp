// Calls, as the worker and the coordinator in Python see them: objects arrive just as they were.
#pragma once

#include "interop.hpp"
#include "object_walk.hpp"

namespace miniray::python {

/// The parts of a call or a reply as a message. What messages cannot say exactly at the positions `begin` to `end`
/// becomes one pickle at `begin`, with nulls behind it; what that raises if it cannot be done.
[[nodiscard]] std::unique_ptr<EncodedObject> encode_parts(nb::list parts, std::size_t begin, std::size_t end,
                                                          Message::Kind kind);

/// Has a worker's handle answer calls.
void answer_calls(Handle& handle);

}  // namespace miniray::python
