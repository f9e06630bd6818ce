// The memory that the ranks of a group on one machine share: a barrier, what each rank is calling, and areas for data.
// The layout is in docs/collectives.md. The ranks trust each other, because all of them belong to one program.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/system.hpp"
#include "miniray/group.hpp"
#include "miniray/limits.hpp"

namespace miniray {

/// What a rank is calling. The ranks compare these before they exchange data.
struct GroupCall {
  enum class Kind : std::uint8_t {
    join,
    barrier,
    all_reduce,
    reduce,
    broadcast,
    scatter,
    gather,
    all_gather,
    reduce_scatter
  };
  Kind kind = Kind::join;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  std::uint8_t unused = 0;
  std::int32_t root = 0;
  std::uint64_t bytes = 0;  ///< of the data that each rank gives, or gets, as the kind says
  friend bool operator==(const GroupCall&, const GroupCall&) = default;
  [[nodiscard]] std::string text() const;  ///< "all_reduce(sum, 100 x float32)"
};
static_assert(sizeof(GroupCall) == 16);
/// The text of the error if two ranks, given by their names, make different calls.
[[nodiscard]] std::string different_calls(const std::string& one, const GroupCall& call, const std::string& other,
                                          const GroupCall& other_call);

struct GroupHead {
  alignas(64) std::atomic<std::uint32_t> arrived;   ///< how often ranks have arrived at a barrier
  alignas(64) std::atomic<std::uint32_t> phase;     ///< how many barriers are complete; ranks sleep on it
  alignas(64) std::atomic<std::uint32_t> sleepers;  ///< how many ranks sleep, or more
  alignas(64) std::atomic<std::uint32_t> broken;    ///< 0, or the fault and the rank that has it
};
struct GroupRank {
  alignas(64) std::atomic<std::uint32_t> arrivals;  ///< how many barriers the rank has reached
  std::atomic<std::uint32_t> left;                  ///< 1: the rank has left the group
  std::array<GroupCall, 2> calls;                   ///< of its even and its odd calls
};
/// Why the group is broken, as words. Only its own rank writes it, before it sets GroupHead::broken.
struct GroupReason {
  std::uint32_t bytes;
  std::array<char, limits::group_reason_bytes_max> text;
};
static_assert(sizeof(GroupHead) == 256 && sizeof(GroupRank) == 64 && sizeof(GroupReason) == 1024);

struct GroupMember {
  std::string name;
  pid_t pid;
};
/// The ranks of a group by machine. A group on one machine has one node.
struct GroupNodes {
  std::vector<std::vector<std::size_t>> ranks;  ///< of each node, in ascending order; the first one leads the node
  std::size_t here = 0;                         ///< the node of this process
  [[nodiscard]] std::size_t size() const { return ranks.size(); }
  [[nodiscard]] std::size_t node_of(std::size_t rank) const;
};

/// A rank's view of the segment, which the ranks of one machine share. If the group has ranks on other machines,
/// set_outside() connects the segment with them.
class GroupSegment {
 public:
  /// What the segment has room for. There may be more areas than ranks.
  struct Layout {
    std::size_t ranks, areas, area_bytes;
    [[nodiscard]] std::size_t data_begin() const;
    [[nodiscard]] std::size_t bytes() const { return data_begin() + 2 * areas * area_bytes; }
  };
  /// The layout of a group that is on one machine, and of a node of a group that is on several: there, one more area is
  /// for what goes to other machines and comes from them.
  [[nodiscard]] static Layout on_one_machine(std::size_t ranks) { return {ranks, ranks, limits::group_area_bytes}; }
  [[nodiscard]] static Layout on_a_node(std::size_t ranks) { return {ranks, ranks + 1, limits::group_node_area_bytes}; }
  /// Returns new memory. Throws Error if the system has no room for it.
  [[nodiscard]] static Fd make(const Layout& layout);

  struct Settings {
    std::vector<GroupMember> members;  ///< of the whole group
    std::size_t rank;                  ///< of this process, in the whole group
    GroupNodes nodes;
    double timeout_s;
    std::function<void()> on_interrupt;
  };
  /// Throws ProtocolError if the memory is not that of such a group.
  GroupSegment(Fd memory, const Layout& layout, Settings settings);
  /// `look` is called while this rank waits; it may call fail(). `tell` is called with the reason if this rank is the
  /// first one of its machine that finds the group broken.
  void set_outside(std::function<void()> look, std::function<void(const std::string&)> tell) {
    look_outside_ = std::move(look);
    tell_outside_ = std::move(tell);
  }
  /// Tells the other ranks of this machine that this one takes part no longer.
  void leave();
  /// False in a child of the process that has joined.
  [[nodiscard]] bool is_ours() const { return generation_ == process_generation(); }

  /// The position of this process among the ranks of this machine, and how many those are.
  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] std::size_t ranks() const { return layout_.ranks; }
  [[nodiscard]] std::size_t area_bytes() const { return layout_.area_bytes; }
  [[nodiscard]] const Settings& settings() const { return settings_; }
  /// How long this rank spins before it sleeps.
  [[nodiscard]] std::int64_t spin_ns() const { return spin_ns_; }
  /// "rank 3 (worker 1234 at node2:10000)", for a rank of the whole group.
  [[nodiscard]] std::string name_of_rank(std::size_t rank) const;
  /// How many calls this rank has begun, and what the last one is.
  [[nodiscard]] std::uint32_t calls() const { return calls_; }
  [[nodiscard]] const GroupCall& call() const { return state_of(index_).calls[calls_ % 2]; }

  /// Announces a call, before its first sync(), which compares it with the calls of the others.
  void begin(const GroupCall& call);
  /// Waits until all ranks of this machine are here. Throws GroupBroken or TimeoutError; both break the group.
  void sync();
  /// For a rank that waits for something else during a call: looks at the other ranks of this machine, and throws as
  /// sync() does.
  void look_around(const Deadline& deadline, const std::function<std::string()>& missing);
  /// Calls `wait`. If it throws, breaks the group, because the other ranks must not wait for this one.
  template <class Wait>
  auto breaking(Wait wait) {
    try {
      return wait();
    } catch (...) {
      give_up();
      throw;
    }
  }
  /// Breaks the group. The reason says who is at fault.
  [[noreturn]] void fail(const std::string& reason);
  /// Returns the area with this number that may be written now, before a sync(), and read after it. The first areas
  /// belong to the ranks. Areas alternate, so that ranks may still read the last ones while others write the next.
  [[nodiscard]] std::byte* area(std::size_t number) const;
  /// Turns to the next areas. Each round has at least one sync().
  void next_round() { ++round_; }

 private:
  enum class Fault : std::uint32_t { died = 1, left = 2, gave_up = 3, differs = 4, told = 5 };
  [[nodiscard]] GroupHead& head() const { return *reinterpret_cast<GroupHead*>(mapping_.bytes().data()); }
  [[nodiscard]] GroupRank& state_of(std::size_t index) const;
  [[nodiscard]] GroupReason& reason_of(std::size_t index) const;
  [[nodiscard]] std::string name_of_index(std::size_t index) const;
  [[nodiscard]] bool complete() const { return head().phase.load() == phase_; }
  bool spin();
  void sleep_until_complete(const Deadline& deadline);
  void look_at(std::size_t index);
  void look_at_missing();
  [[nodiscard]] std::string missing_here() const;
  [[nodiscard]] bool has_died(std::size_t index);
  void compare_calls();
  bool set_broken(Fault fault, std::size_t index);
  void give_up();
  [[noreturn]] void break_group(Fault fault, std::size_t index);
  [[noreturn]] void time_out(const std::string& missing);
  [[noreturn]] void throw_broken(std::uint32_t word) const;
  [[nodiscard]] std::string reason_in(std::uint32_t word) const;

  Layout layout_;
  system::Mapping mapping_;
  Settings settings_;
  std::size_t index_;
  std::vector<Fd> processes_;  // of the ranks of this machine
  std::function<void()> look_outside_;
  std::function<void(const std::string&)> tell_outside_;
  std::int64_t spin_ns_;
  bool crowded_;  // there are more ranks than cores
  std::uint32_t phase_ = 0, calls_ = 0;
  bool must_compare_ = false;
  std::uint64_t round_ = 0;
  std::uint64_t generation_;
};

}  // namespace miniray
