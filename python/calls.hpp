// Encodes calls and replies of Python so that objects arrive just as they were.
#pragma once

#include <exception>
#include <functional>

#include "interop.hpp"
#include "object_walk.hpp"

namespace miniray::python {

/// A function that pickles an object for a peer. It returns the pickle, and what the peer has to be told first. None in
/// place of the pickle: the object can be sent without one, although parts of it occur twice.
using Packer = std::function<nb::object(nb::handle)>;

/// The positions in the body of a call or a reply that may hold objects which a message cannot hold exactly.
struct PickledParts {
  std::size_t begin, end;
};
/// Encodes the body of a call or a reply. If a message cannot hold the parts at those positions exactly, they become
/// one pickle at the first, with an empty map behind it. `needs`, if it is given, gets what the peer has to be told
/// first. Throws what the packer raises.
[[nodiscard]] std::unique_ptr<EncodedObject> encode_parts(nb::list parts, PickledParts pickled, const Packer& pack,
                                                          nb::object* needs = nullptr);
inline constexpr PickledParts of_call{1, 3}, of_create{2, 4}, of_map{1, 2}, of_values{0, 1};

/// Returns the Python exception for a C++ one.
[[nodiscard]] nb::object raised_by(const std::exception_ptr& thrown);

/// Has a worker's handle answer calls.
void answer_calls(Handle& handle);

}  // namespace miniray::python
