// Calls, as the worker and the coordinator in Python see them: objects arrive just as they were.
#pragma once

#include <functional>

#include "interop.hpp"
#include "object_walk.hpp"

namespace miniray::python {

/// Makes a pickle of an object, for one peer: a function that returns the pickle, and what the peer has to be told
/// first.
using Packer = std::function<nb::object(nb::handle)>;

/// Where in the body of a call or a reply there may be more than messages can say.
struct PickledParts {
  std::size_t begin, end;
};
/// The body of a call or a reply. What messages cannot say exactly at those positions becomes one pickle at the first,
/// with an empty map behind it; what that raises if it cannot be done. `needs`, if it is given, gets what the packer
/// says that the peer has to be told first.
[[nodiscard]] std::unique_ptr<EncodedObject> encode_parts(nb::list parts, PickledParts pickled, const Packer& pack,
                                                          nb::object* needs = nullptr);
inline constexpr PickledParts of_call{1, 3}, of_create{2, 4}, of_map{1, 2}, of_values{0, 1};

/// Has a worker's handle answer calls.
void answer_calls(Handle& handle);

}  // namespace miniray::python
