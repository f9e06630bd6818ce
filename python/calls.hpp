// Calls, as the worker and the coordinator in Python see them: objects arrive just as they were.
#pragma once

#include <functional>

#include "interop.hpp"
#include "object_walk.hpp"

namespace miniray::python {

/// Makes a pickle of an object, for one peer: a function that returns the pickle, and what the peer has to be told
/// first.
using Packer = std::function<nb::object(nb::handle)>;

/// The parts of a call or a reply as a message. What messages cannot say exactly at the positions `begin` to `end`
/// becomes one pickle at `begin`, with nulls behind it; what that raises if it cannot be done. `needs`, if it is given,
/// gets what the packer says that the peer has to be told first.
[[nodiscard]] std::unique_ptr<EncodedObject> encode_parts(nb::list parts, std::size_t begin, std::size_t end,
                                                          Message::Kind kind, const Packer& pack,
                                                          nb::object* needs = nullptr);

/// Has a worker's handle answer calls.
void answer_calls(Handle& handle);

}  // namespace miniray::python
