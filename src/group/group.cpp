// The collective operations. Large data goes through the shared areas in rounds; each round is: write, sync, read. The
// areas of two rounds alternate, so a round needs no second sync before the next one.
#include "miniray/group.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "group/reduce.hpp"
#include "group/segment.hpp"
#include "miniray/error.hpp"
#include "wire/passed.hpp"

namespace miniray {
namespace {

constexpr const char* invitation_key = "miniray.group";

GroupSegment segment_of(const Value& invitation, std::function<void()> on_interrupt) {
  const Value* const found = invitation.kind() == Value::Kind::map ? invitation.find(invitation_key) : nullptr;
  if (found == nullptr)
    throw UsageError("an invitation to a group was expected, and the message is " + invitation.text() +
                     ". Let the coordinator call create_group() before it sends the worker other messages");
  try {
    const Value& group = *found;
    std::vector<GroupSegment::Member> members;
    for (const Value& member : group["members"].list())
      members.push_back({member["name"].string(), static_cast<pid_t>(member["pid"].integer())});
    PassedDescriptor* const memory = PassedDescriptor::in(group["memory"].array().buffer());
    if (memory == nullptr) throw ProtocolError("the invitation to a group has no memory");
    if (!memory->descriptor.valid())
      throw UsageError("this invitation to a group was used before; keep the Group that it made");
    return {std::move(memory->descriptor), static_cast<std::size_t>(group["rank"].integer()), std::move(members),
            group["timeout_s"].real(), std::move(on_interrupt)};
  } catch (const ValueError& error) {
    throw ProtocolError(std::string("the invitation to a group is malformed: ") + error.what());
  }
}

// The part of `bytes` that one of the ranks reduces: whole elements, nearly the same for all.
struct Piece {
  std::size_t begin, bytes;
};
Piece piece_of(std::size_t bytes, std::size_t item, std::size_t rank, std::size_t ranks) {
  const std::size_t items = bytes / item;
  const std::size_t begin = items * rank / ranks, end = items * (rank + 1) / ranks;
  return {begin * item, (end - begin) * item};
}

}  // namespace

class Group::State {
 public:
  static constexpr const char* class_name = "Group";
  State(const Value& invitation, std::function<void()> on_interrupt)
      : segment(segment_of(invitation, std::move(on_interrupt))) {
    segment.begin({});
    segment.sync();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { segment.leave(); }

  void require_root(int root) const {
    if (root < 0 || static_cast<std::size_t>(root) >= segment.ranks())
      throw UsageError("there is no rank " + std::to_string(root) + " in a group of " +
                       std::to_string(segment.ranks()) + "; ranks begin at 0");
  }
  void require_parts(std::size_t all, std::size_t part) const {
    if (all != part * segment.ranks())
      throw UsageError("the parts of all ranks have " + std::to_string(all) + " bytes, and " +
                       std::to_string(segment.ranks()) + " parts of " + std::to_string(part) +
                       " bytes are needed; give an array with one part for each rank");
  }
  // Calls round(begin, bytes) for each piece of the data that fits into an area, at least once.
  template <class Round>
  void in_rounds(std::size_t bytes, std::size_t most, Round round) {
    std::size_t begin = 0;
    do {
      const std::size_t now = std::min(bytes - begin, most);
      round(begin, now);
      segment.next_round();
      begin += now;
    } while (begin < bytes);
  }
  void reduce_small(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result);
  void reduce_round(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result);
  void reduce(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result);
  void combine_piece(std::byte* out, const std::byte* own, std::size_t offset, std::size_t bytes, DType dtype,
                     ReduceOp op);

  GroupSegment segment;
};

// Combines the piece of all ranks, in the order of ranks, so that the result does not depend on who computes it.
void Group::State::combine_piece(std::byte* out, const std::byte* own, std::size_t offset, std::size_t bytes,
                                 DType dtype, ReduceOp op) {
  const auto input = [&](std::size_t rank) { return rank == segment.rank() ? own : segment.area(rank) + offset; };
  if (bytes == 0) return;
  if (segment.ranks() == 1) {
    std::memmove(out, own, bytes);
    return;
  }
  combine(out, input(0), input(1), bytes, dtype, op);
  for (std::size_t rank = 2; rank < segment.ranks(); ++rank) combine(out, out, input(rank), bytes, dtype, op);
}

// One sync: every rank that wants the result combines all of it.
void Group::State::reduce_small(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result) {
  std::byte* const mine = segment.area(segment.rank());
  if (!data.empty()) std::memcpy(mine, data.data(), data.size());
  segment.sync();
  if (wants_result) combine_piece(data.data(), mine, 0, data.size(), dtype, op);
  segment.next_round();
}

// Two syncs: each rank combines its piece, and then takes the pieces of the others.
void Group::State::reduce_round(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result) {
  std::byte* const mine = segment.area(segment.rank());
  const Piece own = piece_of(data.size(), item_bytes(dtype), segment.rank(), segment.ranks());
  const std::size_t own_end = own.begin + own.bytes;
  std::memcpy(mine, data.data(), own.begin);
  std::memcpy(mine + own_end, data.data() + own_end, data.size() - own_end);
  segment.sync();
  combine_piece(mine + own.begin, data.data() + own.begin, own.begin, own.bytes, dtype, op);
  segment.sync();
  if (!wants_result) return;
  for (std::size_t rank = 0; rank < segment.ranks(); ++rank) {
    const Piece piece = piece_of(data.size(), item_bytes(dtype), rank, segment.ranks());
    std::memcpy(data.data() + piece.begin, segment.area(rank) + piece.begin, piece.bytes);
  }
}

void Group::State::reduce(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result) {
  if (data.size() <= limits::group_small_bytes_max) return reduce_small(data, dtype, op, wants_result);
  in_rounds(data.size(), limits::group_area_bytes, [&](std::size_t begin, std::size_t bytes) {
    reduce_round(data.subspan(begin, bytes), dtype, op, wants_result);
  });
}

Group::Group(const Value& invitation, std::function<void()> on_interrupt)
    : state_(std::make_unique<State>(invitation, std::move(on_interrupt))) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

Group Group::join(Handle& handle, std::function<void()> on_interrupt) {
  return Group(handle.recv(), std::move(on_interrupt));
}

int Group::rank() const { return static_cast<int>(state_->segment.rank()); }
int Group::size() const { return static_cast<int>(state_->segment.ranks()); }

void Group::barrier() {
  state_->segment.begin({.kind = GroupCall::Kind::barrier});
  state_->segment.sync();
}

void Group::all_reduce(Array& array, ReduceOp op) { all_reduce_bytes(array.mutable_bytes(), array.dtype(), op); }

void Group::all_reduce_bytes(std::span<std::byte> elements, DType dtype, ReduceOp op) {
  require_reducible(dtype, op);
  state_->segment.begin({GroupCall::Kind::all_reduce, dtype, op, 0, 0, elements.size()});
  state_->reduce(elements, dtype, op, true);
}

void Group::reduce_bytes(std::span<std::byte> elements, DType dtype, ReduceOp op, int root) {
  require_reducible(dtype, op);
  state_->require_root(root);
  state_->segment.begin({GroupCall::Kind::reduce, dtype, op, 0, root, elements.size()});
  state_->reduce(elements, dtype, op, rank() == root);
}

void Group::broadcast_bytes(std::span<std::byte> elements, DType dtype, int root) {
  GroupSegment& segment = state_->segment;
  state_->require_root(root);
  segment.begin({GroupCall::Kind::broadcast, dtype, {}, 0, root, elements.size()});
  state_->in_rounds(elements.size(), limits::group_area_bytes, [&](std::size_t begin, std::size_t bytes) {
    std::byte* const area = segment.area(static_cast<std::size_t>(root));
    std::byte* const here = elements.data() + begin;
    if (rank() == root && bytes > 0) std::memcpy(area, here, bytes);
    segment.sync();
    if (rank() != root && bytes > 0) std::memcpy(here, area, bytes);
  });
}

void Group::scatter_bytes(std::span<const std::byte> all, std::span<std::byte> part, DType dtype, int root) {
  GroupSegment& segment = state_->segment;
  state_->require_root(root);
  if (rank() == root) state_->require_parts(all.size(), part.size());
  segment.begin({GroupCall::Kind::scatter, dtype, {}, 0, root, part.size()});
  const std::size_t most = limits::group_area_bytes / segment.ranks();
  state_->in_rounds(part.size(), most, [&](std::size_t begin, std::size_t bytes) {
    std::byte* const area = segment.area(static_cast<std::size_t>(root));
    if (rank() == root && bytes > 0)
      for (std::size_t other = 0; other < segment.ranks(); ++other)
        std::memcpy(area + other * bytes, all.data() + other * part.size() + begin, bytes);
    segment.sync();
    if (bytes > 0) std::memcpy(part.data() + begin, area + segment.rank() * bytes, bytes);
  });
}

void Group::gather_bytes(std::span<const std::byte> part, std::span<std::byte> all, DType dtype, int root) {
  GroupSegment& segment = state_->segment;
  const bool to_all = root == every_rank;
  if (!to_all) state_->require_root(root);
  const bool wants_result = to_all || rank() == root;
  if (wants_result) state_->require_parts(all.size(), part.size());
  segment.begin({to_all ? GroupCall::Kind::all_gather : GroupCall::Kind::gather, dtype, {}, 0, root, part.size()});
  state_->in_rounds(part.size(), limits::group_area_bytes, [&](std::size_t begin, std::size_t bytes) {
    if (bytes > 0) std::memcpy(segment.area(segment.rank()), part.data() + begin, bytes);
    segment.sync();
    if (!wants_result || bytes == 0) return;
    for (std::size_t other = 0; other < segment.ranks(); ++other)
      std::memcpy(all.data() + other * part.size() + begin, segment.area(other), bytes);
  });
}

void Group::reduce_scatter_bytes(std::span<const std::byte> all, std::span<std::byte> part, DType dtype, ReduceOp op) {
  GroupSegment& segment = state_->segment;
  require_reducible(dtype, op);
  state_->require_parts(all.size(), part.size());
  segment.begin({GroupCall::Kind::reduce_scatter, dtype, op, 0, 0, part.size()});
  const std::size_t item = item_bytes(dtype);
  const std::size_t most = limits::group_area_bytes / segment.ranks() / item * item;
  state_->in_rounds(part.size(), most, [&](std::size_t begin, std::size_t bytes) {
    std::byte* const mine = segment.area(segment.rank());
    if (bytes > 0)
      for (std::size_t other = 0; other < segment.ranks(); ++other)
        std::memcpy(mine + other * bytes, all.data() + other * part.size() + begin, bytes);
    segment.sync();
    const std::size_t offset = segment.rank() * bytes;
    state_->combine_piece(part.data() + begin, mine + offset, offset, bytes, dtype, op);
  });
}

void create_group(std::span<Worker* const> workers, const CollectiveOptions& options) {
  if (workers.empty()) throw UsageError("a group needs at least one worker");
  List members;
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    Worker& worker = *workers[rank];
    if (!system::is_unix_socket(worker.fileno()))
      throw UsageError("cannot make a group with " + worker.name() +
                       ": it is on another machine, and the ranks of a group share memory. Make a group on each "
                       "machine, or use TrainingGroup with a library such as NCCL or Gloo");
    if (std::find(workers.begin(), workers.begin() + static_cast<std::ptrdiff_t>(rank), &worker) !=
        workers.begin() + static_cast<std::ptrdiff_t>(rank))
      throw UsageError("cannot make a group: " + worker.name() + " is in the list twice");
    members.push_back({{"name", worker.name()}, {"pid", static_cast<std::int64_t>(worker.pid())}});
  }
  const Fd memory = GroupSegment::make(workers.size());
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    auto copy = std::make_shared<PassedDescriptor>(system::duplicate(memory.get()));
    workers[rank]->send({{invitation_key, Value{{"rank", rank},
                                                {"members", Value(members)},
                                                {"timeout_s", static_cast<double>(options.timeout_s)},
                                                {"memory", PassedDescriptor::as_array(std::move(copy))}}}});
  }
}

void create_group(std::span<Worker> workers, const CollectiveOptions& options) {
  std::vector<Worker*> pointers;
  for (Worker& worker : workers) pointers.push_back(&worker);
  create_group(pointers, options);
}

}  // namespace miniray
