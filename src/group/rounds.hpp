// How the calls of a group divide data: into rounds that fit into an area, and among ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "group/reduce.hpp"
#include "group/segment.hpp"

namespace miniray {

/// Calls round(begin, bytes) for each piece of the data that has at most `most` bytes, at least once.
template <class Round>
void in_rounds(GroupSegment& segment, std::size_t bytes, std::size_t most, Round round) {
  std::size_t begin = 0;
  do {
    const std::size_t now = std::min(bytes - begin, most);
    round(begin, now);
    segment.next_round();
    begin += now;
  } while (begin < bytes);
}

/// The part of `bytes` that belongs to one of several ranks or nodes: whole elements, nearly the same for all.
struct Piece {
  std::size_t begin, bytes;
};
inline Piece piece_of(std::size_t bytes, std::size_t item, std::size_t number, std::size_t count) {
  const std::size_t items = bytes / item;
  const std::size_t begin = items * number / count, end = items * (number + 1) / count;
  return {begin * item, (end - begin) * item};
}

/// memcpy() that allows null pointers if there is nothing to copy.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// Combines a piece of the areas of all ranks of this machine, in the order of ranks, so that the result does not
/// depend on who computes it. `own` is the piece of this rank, which need not be in its area. `out` overlaps with none
/// of these pieces.
inline void combine_ranks(const GroupSegment& segment, std::byte* out, const std::byte* own, std::size_t offset,
                          std::size_t bytes, DType dtype, ReduceOp op) {
  const auto input = [&](std::size_t rank) { return rank == segment.index() ? own : segment.area(rank) + offset; };
  if (bytes == 0) return;
  if (segment.ranks() == 1) {
    std::memmove(out, own, bytes);
    return;
  }
  combine(out, input(0), input(1), bytes, dtype, op);
  for (std::size_t rank = 2; rank < segment.ranks(); ++rank) combine(out, out, input(rank), bytes, dtype, op);
}

}  // namespace miniray
