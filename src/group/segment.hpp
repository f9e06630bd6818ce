// The memory that the ranks of a group share: a barrier, what each rank is calling, and areas for data. The layout is
// in docs/collectives.md. The ranks trust each other, because all of them belong to one program.
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
static_assert(sizeof(GroupHead) == 256 && sizeof(GroupRank) == 64);

/// A rank's view of the segment.
class GroupSegment {
 public:
  struct Member {
    std::string name;
    pid_t pid;
  };
  /// Returns new memory for a group of this size. Throws SystemError if the system has no room for it.
  [[nodiscard]] static Fd make(std::size_t ranks);
  /// Throws ProtocolError if the memory is not that of such a group.
  GroupSegment(Fd memory, std::size_t rank, std::vector<Member> members, double timeout_s,
               std::function<void()> on_interrupt);
  /// Tells the other ranks that this one takes part no longer.
  void leave();

  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] std::size_t ranks() const { return members_.size(); }
  /// Announces a call, before its first sync(), which compares it with the calls of the others.
  void begin(const GroupCall& call);
  /// Waits until all ranks are here. Throws GroupBroken or TimeoutError; both break the group.
  void sync();
  /// Returns the area of a rank that may be written now, before a sync(), and read after it. Areas alternate, so that
  /// ranks may still read the last ones while others write the next.
  [[nodiscard]] std::byte* area(std::size_t rank) const;
  /// Turns to the next areas. Each round has at least one sync().
  void next_round() { ++round_; }

 private:
  enum class Fault : std::uint32_t { died = 1, left = 2, gave_up = 3, differs = 4 };
  [[nodiscard]] GroupHead& head() const { return *reinterpret_cast<GroupHead*>(mapping_.bytes().data()); }
  [[nodiscard]] GroupRank& state_of(std::size_t rank) const;
  [[nodiscard]] bool complete() const { return head().phase.load() == phase_; }
  bool spin();
  void sleep_until_complete(const Deadline& deadline);
  void look_at_missing();
  [[nodiscard]] bool has_died(std::size_t rank);
  void compare_calls();
  [[noreturn]] void break_group(Fault fault, std::size_t rank);
  [[noreturn]] void throw_broken(std::uint32_t word) const;
  [[nodiscard]] std::string name_of_rank(std::size_t rank) const;

  system::Mapping mapping_;
  std::size_t rank_;
  std::vector<Member> members_;
  std::vector<Fd> processes_;  // of the other ranks, opened when they are first missed
  double timeout_s_;
  std::function<void()> on_interrupt_;
  std::int64_t spin_ns_;
  bool crowded_;  // there are more ranks than cores
  std::uint32_t phase_ = 0, calls_ = 0;
  bool must_compare_ = false;
  std::uint64_t round_ = 0;
  std::uint64_t generation_;
};

}  // namespace miniray
