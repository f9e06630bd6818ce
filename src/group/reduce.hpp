// Combines the elements of two arrays.
#pragma once

#include <cstddef>

#include "miniray/array.hpp"
#include "miniray/group.hpp"

namespace miniray {

/// Throws UsageError if elements of this dtype cannot be combined by this operation.
void require_reducible(DType dtype, ReduceOp op);
/// Sets each element of `out` to the combination of the elements of `a` and `b`. `out` may be `a`; otherwise the memory
/// does not overlap.
void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t bytes, DType dtype, ReduceOp op);

}  // namespace miniray
