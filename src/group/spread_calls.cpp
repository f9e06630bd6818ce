#include "group/spread_calls.hpp"

#include "base/check.hpp"
#include "group/rounds.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

Buffer view(const std::byte* data, std::size_t bytes) { return Buffer::borrow(data, bytes); }

}  // namespace

SpreadCalls::SpreadCalls(GroupSegment& segment, GroupLinks links) : segment_(segment), links_(std::move(links)) {
  segment_.set_outside([this] { look_outside(); },
                       [this](const std::string& reason) { links_.tell(reason, segment_.calls()); });
}

void SpreadCalls::look_outside() {
  const std::optional<GroupLinks::Fault> fault = links_.look(segment_.calls());
  if (!fault) return;
  if (!fault->reason.empty()) segment_.fail(fault->reason);
  segment_.fail("the group is broken: " + segment_.name_of_rank(fault->rank) + fault->what +
                ". Its ranks cannot go on; make another group of the workers that are left");
}

template <class Outgoing>
std::vector<SpreadCalls::Pieces> SpreadCalls::exchange(Outgoing outgoing) {
  ++exchanges_;
  for (std::size_t node = 0; node < nodes().size(); ++node)
    if (node != nodes().here) links_.send(node, {exchanges_, segment_.call(), outgoing(node)});
  return receive_all();
}

std::vector<SpreadCalls::Pieces> SpreadCalls::receive_all() {
  const Deadline deadline = Deadline::in_seconds(segment_.settings().timeout_s);
  Deadline next_look = Deadline::in_ms(limits::group_slice_ms);
  const auto missing = [this] {
    std::string names;
    for (const std::size_t node : links_.missing())
      for (const std::size_t rank : nodes().ranks[node])
        names += (names.empty() ? "" : " or ") + segment_.name_of_rank(rank);
    return names;
  };
  while (!advance_or_spin()) {
    look_outside();  // before the wait, which a line that has just ended does not end
    links_.wait(deadline.poll_ms(limits::group_slice_ms));
    if (!next_look.passed()) continue;
    segment_.look_around(deadline, missing);
    next_look = Deadline::in_ms(limits::group_slice_ms);
  }
  std::vector<Pieces> arrived(nodes().size());
  for (std::size_t node = 0; node < nodes().size(); ++node) {
    if (node == nodes().here) continue;
    GroupLinks::Parcel parcel = links_.take(node);
    check(parcel, node);
    arrived[node] = std::move(parcel.pieces);
  }
  return arrived;
}

// The parcels of small calls come soon, and waking up takes longer than looking again.
bool SpreadCalls::advance_or_spin() {
  const std::int64_t until = now_ns() + segment_.spin_ns();
  while (!links_.advance()) {
    if (now_ns() >= until) return false;
    system::yield();
  }
  return true;
}

void SpreadCalls::check(const GroupLinks::Parcel& parcel, std::size_t node) {
  const std::size_t leader = nodes().ranks[node].front();
  if (parcel.call != segment_.call())
    segment_.fail(
        different_calls(segment_.name_of_rank(rank()), segment_.call(), segment_.name_of_rank(leader), parcel.call));
  if (parcel.number != exchanges_)
    throw ProtocolError(segment_.name_of_rank(leader) + " sent parcel " + std::to_string(parcel.number) +
                        " of a group, and number " + std::to_string(exchanges_) + " was expected");
}

std::byte* SpreadCalls::piece(Pieces& pieces, std::size_t at, std::size_t bytes) {
  if (at >= pieces.size() || pieces[at].size != bytes)
    throw ProtocolError("a parcel of a group has not the pieces that its call needs");
  return pieces[at].data;
}

SpreadCalls::Pieces SpreadCalls::parts_of(std::size_t node, std::size_t bytes) const {
  Pieces parts;
  for (const std::size_t rank : nodes().ranks[node]) parts.push_back(view(node_area() + rank * bytes, bytes));
  return parts;
}

void SpreadCalls::place_parts(std::size_t node, std::size_t bytes, Pieces& arrived) {
  for (std::size_t at = 0; at < nodes().ranks[node].size(); ++at)
    copy_bytes(node_area() + nodes().ranks[node][at] * bytes, piece(arrived, at, bytes), bytes);
}

// Combines in the order of nodes, so that the result does not depend on who computes it.
void SpreadCalls::combine_nodes(std::byte* own, std::vector<Pieces>& arrived, std::size_t at, std::size_t bytes,
                                DType dtype, ReduceOp op) {
  const auto input = [&](std::size_t node) { return node == nodes().here ? own : piece(arrived[node], at, bytes); };
  std::byte* const out = input(0);
  for (std::size_t node = 1; node < nodes().size(); ++node) combine(out, out, input(node), bytes, dtype, op);
  if (out != own) copy_bytes(own, out, bytes);
}

void SpreadCalls::barrier() {
  segment_.sync();
  as_leader([this] { (void)exchange([](std::size_t) { return Pieces(); }); });
  segment_.sync();
}

// Puts the reduction over the ranks of this node, which are in their areas, into the node area. Each rank combines a
// piece. A rank that is alone on its node has put its data there already.
void SpreadCalls::combine_here(std::size_t bytes, DType dtype, ReduceOp op) {
  segment_.sync();
  if (segment_.ranks() == 1) return;
  const Piece own = piece_of(bytes, item_bytes(dtype), segment_.index(), segment_.ranks());
  combine_ranks(segment_, node_area() + own.begin, own_area() + own.begin, own.begin, own.bytes, dtype, op);
  segment_.sync();
}

// Every leader that wants the result gets the data of all others, and combines all of it.
void SpreadCalls::reduce_nodes_small(std::size_t bytes, DType dtype, ReduceOp op, std::size_t node) {
  auto arrived = exchange(
      [&](std::size_t to) { return node == every_node || node == to ? Pieces{view(node_area(), bytes)} : Pieces(); });
  if (node == every_node || node == nodes().here) combine_nodes(node_area(), arrived, 0, bytes, dtype, op);
}

// Each leader combines its piece of all nodes, and sends the result to the others. So each sends and receives the data
// less than twice, however many nodes there are.
void SpreadCalls::reduce_nodes(std::size_t bytes, DType dtype, ReduceOp op, std::size_t node) {
  const auto piece_at = [&](std::size_t at) { return piece_of(bytes, item_bytes(dtype), at, nodes().size()); };
  auto arrived =
      exchange([&](std::size_t to) { return Pieces{view(node_area() + piece_at(to).begin, piece_at(to).bytes)}; });
  const Piece own = piece_at(nodes().here);
  combine_nodes(node_area() + own.begin, arrived, 0, own.bytes, dtype, op);
  arrived = exchange([&](std::size_t to) {
    return node == every_node || node == to ? Pieces{view(node_area() + own.begin, own.bytes)} : Pieces();
  });
  if (node != every_node && node != nodes().here) return;
  for (std::size_t from = 0; from < nodes().size(); ++from)
    if (from != nodes().here)
      copy_bytes(node_area() + piece_at(from).begin, piece(arrived[from], 0, piece_at(from).bytes),
                 piece_at(from).bytes);
}

void SpreadCalls::reduce(std::span<std::byte> data, DType dtype, ReduceOp op, std::size_t node, bool wants_result) {
  in_rounds(segment_, data.size(), segment_.area_bytes(), [&](std::size_t begin, std::size_t bytes) {
    copy_bytes(own_area(), data.data() + begin, bytes);
    combine_here(bytes, dtype, op);
    as_leader([&] {
      if (bytes <= limits::group_small_bytes_max)
        reduce_nodes_small(bytes, dtype, op, node);
      else
        reduce_nodes(bytes, dtype, op, node);
    });
    segment_.sync();
    if (wants_result) copy_bytes(data.data() + begin, node_area(), bytes);
  });
}

// If there is little data, the root's node sends all of it to every other node. If there is much, it sends a different
// piece to each other node, which sends its piece on to the rest. So no node sends the data more than twice.
void SpreadCalls::broadcast_nodes(std::size_t bytes, std::size_t root_node) {
  const bool is_root = nodes().here == root_node;
  if (nodes().size() <= 2 || bytes <= limits::group_small_bytes_max) {
    auto arrived = exchange([&](std::size_t) { return is_root ? Pieces{view(node_area(), bytes)} : Pieces(); });
    if (!is_root) copy_bytes(node_area(), piece(arrived[root_node], 0, bytes), bytes);
    return;
  }
  const auto piece_at = [&](std::size_t at) { return piece_of(bytes, 1, at, nodes().size()); };
  auto arrived = exchange([&](std::size_t to) {
    return is_root ? Pieces{view(node_area() + piece_at(to).begin, piece_at(to).bytes)} : Pieces();
  });
  const Piece own = piece_at(nodes().here);
  if (!is_root) copy_bytes(node_area() + own.begin, piece(arrived[root_node], 0, own.bytes), own.bytes);
  arrived = exchange(
      [&](std::size_t to) { return to == root_node ? Pieces() : Pieces{view(node_area() + own.begin, own.bytes)}; });
  for (std::size_t from = 0; from < nodes().size(); ++from)
    if (from != nodes().here && !is_root)
      copy_bytes(node_area() + piece_at(from).begin, piece(arrived[from], 0, piece_at(from).bytes),
                 piece_at(from).bytes);
}

void SpreadCalls::broadcast(std::span<std::byte> data, std::size_t root) {
  in_rounds(segment_, data.size(), segment_.area_bytes(), [&](std::size_t begin, std::size_t bytes) {
    if (rank() == root) copy_bytes(node_area(), data.data() + begin, bytes);
    segment_.sync();
    as_leader([&] { broadcast_nodes(bytes, nodes().node_of(root)); });
    segment_.sync();
    if (rank() != root) copy_bytes(data.data() + begin, node_area(), bytes);
  });
}

void SpreadCalls::scatter(std::span<const std::byte> all, std::span<std::byte> part, std::size_t root) {
  const std::size_t root_node = nodes().node_of(root);
  in_rounds(segment_, part.size(), segment_.area_bytes() / ranks(), [&](std::size_t begin, std::size_t bytes) {
    if (rank() == root)
      for (std::size_t other = 0; other < ranks(); ++other)
        copy_bytes(node_area() + other * bytes, all.data() + other * part.size() + begin, bytes);
    segment_.sync();
    as_leader([&] {
      const bool is_root = nodes().here == root_node;
      auto arrived = exchange([&](std::size_t to) { return is_root ? parts_of(to, bytes) : Pieces(); });
      if (!is_root) place_parts(nodes().here, bytes, arrived[root_node]);
    });
    segment_.sync();
    copy_bytes(part.data() + begin, node_area() + rank() * bytes, bytes);
  });
}

void SpreadCalls::gather(std::span<const std::byte> part, std::span<std::byte> all, std::size_t node,
                         bool wants_result) {
  in_rounds(segment_, part.size(), segment_.area_bytes() / ranks(), [&](std::size_t begin, std::size_t bytes) {
    copy_bytes(node_area() + rank() * bytes, part.data() + begin, bytes);
    segment_.sync();
    as_leader([&] {
      auto arrived = exchange(
          [&](std::size_t to) { return node == every_node || node == to ? parts_of(nodes().here, bytes) : Pieces(); });
      for (std::size_t from = 0; from < nodes().size(); ++from)
        if (from != nodes().here && (node == every_node || node == nodes().here))
          place_parts(from, bytes, arrived[from]);
    });
    segment_.sync();
    if (!wants_result) return;
    for (std::size_t other = 0; other < ranks(); ++other)
      copy_bytes(all.data() + other * part.size() + begin, node_area() + other * bytes, bytes);
  });
}

void SpreadCalls::reduce_scatter(std::span<const std::byte> all, std::span<std::byte> part, DType dtype, ReduceOp op) {
  const std::size_t item = item_bytes(dtype);
  const std::size_t most = segment_.area_bytes() / ranks() / item * item;
  in_rounds(segment_, part.size(), most, [&](std::size_t begin, std::size_t bytes) {
    std::byte* const mine = own_area();
    for (std::size_t other = 0; other < ranks(); ++other)
      copy_bytes(mine + other * bytes, all.data() + other * part.size() + begin, bytes);
    combine_here(ranks() * bytes, dtype, op);
    as_leader([&] {
      auto arrived = exchange([&](std::size_t to) { return parts_of(to, bytes); });
      const std::vector<std::size_t>& here = nodes().ranks[nodes().here];
      for (std::size_t at = 0; at < here.size(); ++at)
        combine_nodes(node_area() + here[at] * bytes, arrived, at, bytes, dtype, op);
    });
    segment_.sync();
    copy_bytes(part.data() + begin, node_area() + rank() * bytes, bytes);
  });
}

}  // namespace miniray
