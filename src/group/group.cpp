// The collective operations. Large data goes through the shared areas in rounds; each round is: write, sync, read. The
// areas of two rounds alternate, so a round needs no second sync before the next one.
#include "miniray/group.hpp"

#include <cstring>
#include <optional>

#include "group/meeting.hpp"
#include "group/reduce.hpp"
#include "group/rounds.hpp"
#include "group/segment.hpp"
#include "group/spread_calls.hpp"
#include "miniray/error.hpp"
#include "wire/passed.hpp"

namespace miniray {
namespace {

// What a rank needs to take part: on one machine the memory is in the invitation, on several the ranks have met.
struct Membership {
  Fd memory;
  GroupSegment::Settings settings;
  std::optional<GroupLinks> links;
};

Membership take_part(Handle* handle, const Value& invitation, std::function<void()> on_interrupt) {
  const Value* const found = invitation.kind() == Value::Kind::map ? invitation.find(invitation_key) : nullptr;
  if (found == nullptr)
    throw UsageError("an invitation to a group was expected, and the message is " + invitation.text() +
                     ". Let the coordinator call create_group() before it sends the worker other messages");
  try {
    const Value& group = *found;
    std::vector<GroupMember> members;
    for (const Value& member : group["members"].list())
      members.push_back({member["name"].string(), static_cast<pid_t>(member["pid"].integer())});
    const auto rank = static_cast<std::size_t>(group["rank"].integer());
    if (rank >= members.size()) throw ValueError("there is no rank " + std::to_string(rank));
    const double timeout_s = group["timeout_s"].real();
    if (const Value* const given = group.find("memory")) {
      PassedDescriptor* const memory = PassedDescriptor::in(given->array().buffer());
      if (memory == nullptr) throw ProtocolError("the invitation to a group has no memory");
      if (!memory->descriptor.valid())
        throw UsageError("this invitation to a group was used before; keep the Group that it made");
      GroupNodes nodes{{{}}, 0};
      for (std::size_t other = 0; other < members.size(); ++other) nodes.ranks.front().push_back(other);
      return {std::move(memory->descriptor),
              {std::move(members), rank, std::move(nodes), timeout_s, std::move(on_interrupt)},
              std::nullopt};
    }
    if (handle == nullptr)
      throw UsageError(
          "this invitation is to a group on several machines, which a worker can join only with its handle; call "
          "Group::join(handle)");
    Met met = meet(*handle, group, rank, members, on_interrupt);
    return {std::move(met.memory),
            {std::move(members), rank, std::move(met.nodes), timeout_s, std::move(on_interrupt)},
            std::move(met.links)};
  } catch (const ValueError& error) {
    throw ProtocolError(std::string("the invitation to a group is malformed: ") + error.what());
  }
}

GroupSegment::Layout layout_of(const Membership& membership) {
  const std::size_t here = membership.settings.nodes.ranks[membership.settings.nodes.here].size();
  return membership.links ? GroupSegment::on_a_node(here) : GroupSegment::on_one_machine(here);
}

}  // namespace

class Group::State {
 public:
  static constexpr const char* class_name = "Group";
  explicit State(Membership membership)
      : layout(layout_of(membership)), segment(std::move(membership.memory), layout, std::move(membership.settings)) {
    if (membership.links) spread.emplace(segment, std::move(*membership.links));
    segment.begin({});
    sync_all();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    segment.leave();
    if (spread && segment.is_ours()) spread->leave();
  }

  [[nodiscard]] std::size_t rank() const { return segment.settings().rank; }
  [[nodiscard]] std::size_t ranks() const { return segment.settings().members.size(); }
  void sync_all() {
    if (spread)
      spread->barrier();
    else
      segment.sync();
  }
  // The node of the root, or every node if each rank is one.
  [[nodiscard]] std::size_t node_of(int root) const {
    return root == every_rank ? SpreadCalls::every_node
                              : segment.settings().nodes.node_of(static_cast<std::size_t>(root));
  }
  void require_root(int root) const {
    if (root < 0 || static_cast<std::size_t>(root) >= ranks())
      throw UsageError("there is no rank " + std::to_string(root) + " in a group of " + std::to_string(ranks()) +
                       "; ranks begin at 0");
  }
  void require_parts(std::size_t all, std::size_t part) const {
    if (all != part * ranks())
      throw UsageError("the parts of all ranks have " + std::to_string(all) + " bytes, and " + std::to_string(ranks()) +
                       " parts of " + std::to_string(part) +
                       " bytes are needed; give an array with one part for each rank");
  }
  void reduce_small(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result);
  void reduce_round(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result);
  void reduce(std::span<std::byte> data, DType dtype, ReduceOp op, int root);

  GroupSegment::Layout layout;
  GroupSegment segment;
  std::optional<SpreadCalls> spread;
};

// One sync: every rank that wants the result combines all of it.
void Group::State::reduce_small(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result) {
  std::byte* const mine = segment.area(segment.index());
  if (!data.empty()) std::memcpy(mine, data.data(), data.size());
  segment.sync();
  if (wants_result) combine_ranks(segment, data.data(), mine, 0, data.size(), dtype, op);
  segment.next_round();
}

// Two syncs: each rank combines its piece, and then takes the pieces of the others.
void Group::State::reduce_round(std::span<std::byte> data, DType dtype, ReduceOp op, bool wants_result) {
  std::byte* const mine = segment.area(segment.index());
  const Piece own = piece_of(data.size(), item_bytes(dtype), segment.index(), segment.ranks());
  const std::size_t own_end = own.begin + own.bytes;
  std::memcpy(mine, data.data(), own.begin);
  std::memcpy(mine + own_end, data.data() + own_end, data.size() - own_end);
  segment.sync();
  combine_ranks(segment, mine + own.begin, data.data() + own.begin, own.begin, own.bytes, dtype, op);
  segment.sync();
  if (!wants_result) return;
  for (std::size_t rank = 0; rank < segment.ranks(); ++rank) {
    const Piece piece = piece_of(data.size(), item_bytes(dtype), rank, segment.ranks());
    std::memcpy(data.data() + piece.begin, segment.area(rank) + piece.begin, piece.bytes);
  }
}

void Group::State::reduce(std::span<std::byte> data, DType dtype, ReduceOp op, int root) {
  const bool wants_result = root == every_rank || static_cast<std::size_t>(root) == rank();
  if (spread) return spread->reduce(data, dtype, op, node_of(root), wants_result);
  if (data.size() <= limits::group_small_bytes_max) return reduce_small(data, dtype, op, wants_result);
  in_rounds(segment, data.size(), segment.area_bytes(), [&](std::size_t begin, std::size_t bytes) {
    reduce_round(data.subspan(begin, bytes), dtype, op, wants_result);
  });
}

Group::Group(const Value& invitation, std::function<void()> on_interrupt)
    : state_(std::make_unique<State>(take_part(nullptr, invitation, std::move(on_interrupt)))) {}
Group::Group(std::unique_ptr<State> state) : state_(std::move(state)) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

Group Group::join(Handle& handle, std::function<void()> on_interrupt) {
  return accept(handle, handle.recv(), std::move(on_interrupt));
}
Group Group::accept(Handle& handle, const Value& invitation, std::function<void()> on_interrupt) {
  return Group(std::make_unique<State>(take_part(&handle, invitation, std::move(on_interrupt))));
}

// Looks at the beginning of the body only, because every message of a worker is looked at: a map whose first key is the
// one of an invitation.
bool is_invitation(const Message& message) {
  if (message.kind != Message::Kind::message) return false;
  static constexpr std::string_view packed = "\x81\xadminiray.group", json = "{\"miniray.group\"";
  static_assert(packed.ends_with(invitation_key));
  return message.body.starts_with(message.codec == Codec::json ? json : packed);
}

int Group::rank() const { return static_cast<int>(state_->rank()); }
int Group::size() const { return static_cast<int>(state_->ranks()); }

void Group::barrier() {
  state_->segment.begin({.kind = GroupCall::Kind::barrier});
  state_->sync_all();
}

void Group::all_reduce(Array& array, ReduceOp op) { all_reduce_bytes(array.mutable_bytes(), array.dtype(), op); }

void Group::all_reduce_bytes(std::span<std::byte> elements, DType dtype, ReduceOp op) {
  require_reducible(dtype, op);
  state_->segment.begin({GroupCall::Kind::all_reduce, dtype, op, 0, 0, elements.size()});
  state_->reduce(elements, dtype, op, every_rank);
}

void Group::reduce_bytes(std::span<std::byte> elements, DType dtype, ReduceOp op, int root) {
  require_reducible(dtype, op);
  state_->require_root(root);
  state_->segment.begin({GroupCall::Kind::reduce, dtype, op, 0, root, elements.size()});
  state_->reduce(elements, dtype, op, root);
}

void Group::broadcast_bytes(std::span<std::byte> elements, DType dtype, int root) {
  GroupSegment& segment = state_->segment;
  state_->require_root(root);
  segment.begin({GroupCall::Kind::broadcast, dtype, {}, 0, root, elements.size()});
  if (state_->spread) return state_->spread->broadcast(elements, static_cast<std::size_t>(root));
  in_rounds(segment, elements.size(), segment.area_bytes(), [&](std::size_t begin, std::size_t bytes) {
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
  if (state_->spread) return state_->spread->scatter(all, part, static_cast<std::size_t>(root));
  in_rounds(segment, part.size(), segment.area_bytes() / segment.ranks(), [&](std::size_t begin, std::size_t bytes) {
    std::byte* const area = segment.area(static_cast<std::size_t>(root));
    if (rank() == root && bytes > 0)
      for (std::size_t other = 0; other < segment.ranks(); ++other)
        std::memcpy(area + other * bytes, all.data() + other * part.size() + begin, bytes);
    segment.sync();
    if (bytes > 0) std::memcpy(part.data() + begin, area + segment.index() * bytes, bytes);
  });
}

void Group::gather_bytes(std::span<const std::byte> part, std::span<std::byte> all, DType dtype, int root) {
  GroupSegment& segment = state_->segment;
  const bool to_all = root == every_rank;
  if (!to_all) state_->require_root(root);
  const bool wants_result = to_all || rank() == root;
  if (wants_result) state_->require_parts(all.size(), part.size());
  segment.begin({to_all ? GroupCall::Kind::all_gather : GroupCall::Kind::gather, dtype, {}, 0, root, part.size()});
  if (state_->spread) return state_->spread->gather(part, all, state_->node_of(root), wants_result);
  in_rounds(segment, part.size(), segment.area_bytes(), [&](std::size_t begin, std::size_t bytes) {
    if (bytes > 0) std::memcpy(segment.area(segment.index()), part.data() + begin, bytes);
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
  if (state_->spread) return state_->spread->reduce_scatter(all, part, dtype, op);
  const std::size_t most = segment.area_bytes() / segment.ranks() / item * item;
  in_rounds(segment, part.size(), most, [&](std::size_t begin, std::size_t bytes) {
    std::byte* const mine = segment.area(segment.index());
    if (bytes > 0)
      for (std::size_t other = 0; other < segment.ranks(); ++other)
        std::memcpy(mine + other * bytes, all.data() + other * part.size() + begin, bytes);
    segment.sync();
    const std::size_t offset = segment.index() * bytes;
    combine_ranks(segment, part.data() + begin, mine + offset, offset, bytes, dtype, op);
  });
}

}  // namespace miniray
