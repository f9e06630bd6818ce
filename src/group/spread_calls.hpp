// The calls of a group whose ranks are on several machines (nodes). On each node, the ranks share memory as they do in
// a group on one machine; the first rank of each node leads it, and exchanges data with the leaders of the others.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "group/links.hpp"
#include "group/segment.hpp"

namespace miniray {

class SpreadCalls {
 public:
  /// Connects the segment with the links. Neither this object nor the segment may be moved afterwards.
  SpreadCalls(GroupSegment& segment, GroupLinks links);
  SpreadCalls(const SpreadCalls&) = delete;
  SpreadCalls& operator=(const SpreadCalls&) = delete;
  ~SpreadCalls() = default;
  /// Tells the ranks of other machines that this one takes part no longer.
  void leave() { links_.leave(segment_.calls()); }

  // Each call was announced by GroupSegment::begin(). `wants_result` is true on ranks that get the result; if only
  // those of one node do, `node` says which; else it is every_node.
  static constexpr std::size_t every_node = SIZE_MAX;
  void barrier();
  void reduce(std::span<std::byte> data, DType dtype, ReduceOp op, std::size_t node, bool wants_result);
  void broadcast(std::span<std::byte> data, std::size_t root);
  void scatter(std::span<const std::byte> all, std::span<std::byte> part, std::size_t root);
  void gather(std::span<const std::byte> part, std::span<std::byte> all, std::size_t node, bool wants_result);
  void reduce_scatter(std::span<const std::byte> all, std::span<std::byte> part, DType dtype, ReduceOp op);

 private:
  using Pieces = std::vector<Buffer>;
  [[nodiscard]] const GroupNodes& nodes() const { return segment_.settings().nodes; }
  [[nodiscard]] std::size_t rank() const { return segment_.settings().rank; }
  [[nodiscard]] std::size_t ranks() const { return segment_.settings().members.size(); }
  [[nodiscard]] bool leads() const { return segment_.index() == 0; }
  /// The area for what goes to other nodes and comes from them.
  [[nodiscard]] std::byte* node_area() const { return segment_.area(segment_.ranks()); }
  /// The area for what this rank gives to a reduction.
  [[nodiscard]] std::byte* own_area() const {
    return segment_.ranks() == 1 ? node_area() : segment_.area(segment_.index());
  }
  void look_outside();
  /// Calls `work` if this rank leads its node. If `work` throws, the group is broken.
  template <class Work>
  void as_leader(Work work) {
    if (leads()) segment_.breaking(work);
  }
  /// Sends to each node the pieces that `outgoing` returns for it. Returns what has come, by node.
  template <class Outgoing>
  std::vector<Pieces> exchange(Outgoing outgoing);
  std::vector<Pieces> receive_all();
  [[nodiscard]] bool advance_or_spin();
  void check(const GroupLinks::Parcel& parcel, std::size_t node);
  [[nodiscard]] std::byte* piece(Pieces& pieces, std::size_t at, std::size_t bytes);
  /// The pieces of the node area with the parts of the ranks of a node; each part has this size.
  [[nodiscard]] Pieces parts_of(std::size_t node, std::size_t bytes) const;
  void place_parts(std::size_t node, std::size_t bytes, Pieces& arrived);
  void combine_nodes(std::byte* own, std::vector<Pieces>& arrived, std::size_t at, std::size_t bytes, DType dtype,
                     ReduceOp op);
  void reduce_nodes(std::size_t bytes, DType dtype, ReduceOp op, std::size_t node);
  void reduce_nodes_small(std::size_t bytes, DType dtype, ReduceOp op, std::size_t node);
  void broadcast_nodes(std::size_t bytes, std::size_t root_node);
  void combine_here(std::size_t bytes, DType dtype, ReduceOp op);

  GroupSegment& segment_;
  GroupLinks links_;
  std::uint64_t exchanges_ = 0;
};

}  // namespace miniray
