#include "group/segment.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/futex.hpp"
#include "channel/spin.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr std::size_t data_alignment = 4096;

std::size_t data_begin(std::size_t ranks) {
  const std::size_t bytes = sizeof(GroupHead) + ranks * sizeof(GroupRank);
  return (bytes + data_alignment - 1) / data_alignment * data_alignment;
}

std::size_t segment_bytes(std::size_t ranks) { return data_begin(ranks) + 2 * ranks * limits::group_area_bytes; }

}  // namespace

std::string GroupCall::text() const {
  static constexpr std::array<const char*, 9> names{"join",    "barrier", "all_reduce", "reduce",        "broadcast",
                                                    "scatter", "gather",  "all_gather", "reduce_scatter"};
  std::string made = names[static_cast<std::size_t>(kind)];
  if (kind == Kind::join || kind == Kind::barrier) return made + "()";
  made += "(";
  if (kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter)
    made += std::string(name_of(op)) + ", ";
  made += std::to_string(bytes / item_bytes(dtype)) + " x " + name_of(dtype);
  if (kind != Kind::all_reduce && kind != Kind::all_gather && kind != Kind::reduce_scatter)
    made += ", root " + std::to_string(root);
  return made + ")";
}

Fd GroupSegment::make(std::size_t ranks) {
  Fd memory = system::sealed_memory("miniray-group", segment_bytes(ranks));
  if (!memory.valid())
    throw Error("cannot make a group of " + std::to_string(ranks) + " ranks: the system has no " +
                std::to_string(segment_bytes(ranks)) + " bytes of shared memory left; free some, or use fewer ranks");
  return memory;
}

GroupSegment::GroupSegment(Fd memory, std::size_t rank, std::vector<Member> members, double timeout_s,
                           std::function<void()> on_interrupt)
    : mapping_([&] {
        const std::size_t bytes = memory.valid() ? system::sealed_memory_bytes(memory.get()) : 0;
        if (members.empty() || rank >= members.size() || bytes != segment_bytes(members.size()))
          throw ProtocolError("the invitation to a group is malformed (rank " + std::to_string(rank) + " of " +
                              std::to_string(members.size()) + ", " + std::to_string(bytes) + " bytes)");
        return system::Mapping(memory.get(), bytes);
      }()),
      rank_(rank),
      members_(std::move(members)),
      timeout_s_(timeout_s),
      on_interrupt_(std::move(on_interrupt)),
      spin_ns_(spin_budget_us({}) * 1000LL),
      crowded_(static_cast<int>(members_.size()) > system::usable_cpus()),
      generation_(process_generation()) {
  for (std::size_t other = 0; other < ranks(); ++other)
    processes_.push_back(other == rank_ ? Fd() : system::watch_process(members_[other].pid));
}

void GroupSegment::leave() {
  if (generation_ != process_generation()) return;
  state_of(rank_).left.store(1);
  system::futex_wake_all(head().phase);
}

GroupRank& GroupSegment::state_of(std::size_t rank) const {
  MINIRAY_CHECK(rank < ranks(), rank, ranks());
  return reinterpret_cast<GroupRank*>(mapping_.bytes().data() + sizeof(GroupHead))[rank];
}

std::byte* GroupSegment::area(std::size_t rank) const {
  const std::size_t index = 2 * rank + round_ % 2;
  return mapping_.bytes().data() + data_begin(ranks()) + index * limits::group_area_bytes;
}

void GroupSegment::begin(const GroupCall& call) {
  if (generation_ != process_generation())
    throw UsageError(
        "this rank of a group belongs to the process that joined, and this process is a child of that one");
  if (const std::uint32_t word = head().broken.load(); word != 0) throw_broken(word);
  state_of(rank_).calls[++calls_ % 2] = call;
  must_compare_ = true;
}

// The last rank to arrive completes the phase. The store of `phase` and the load of `sleepers` are sequentially
// consistent, as are those of a rank that goes to sleep, so that no rank sleeps through the end of its phase.
void GroupSegment::sync() {
  ++phase_;
  state_of(rank_).arrivals.store(phase_, std::memory_order_relaxed);
  if (head().arrived.fetch_add(1) + 1 == phase_ * static_cast<std::uint32_t>(ranks())) {
    head().phase.store(phase_);
    if (head().sleepers.load() > 0) system::futex_wake_all(head().phase);
  } else if (!spin()) {
    sleep_until_complete(Deadline::in_seconds(timeout_s_));
  }
  if (must_compare_) compare_calls();
}

bool GroupSegment::spin() {
  constexpr int looks_per_yield = 50;
  if (spin_ns_ == 0) return complete();
  const std::int64_t until = now_ns() + spin_ns_;
  do {
    // With more ranks than cores, a rank that spins takes time from the one that it waits for.
    for (int look = 0; look < (crowded_ ? 1 : looks_per_yield); ++look) {
      if (complete()) return true;
      system::pause();
    }
    system::yield();
  } while (now_ns() < until);
  return complete();
}

void GroupSegment::sleep_until_complete(const Deadline& deadline) {
  const std::uint32_t before = phase_ - 1;
  try {
    while (!complete()) {
      head().sleepers.fetch_add(1);
      system::futex_wait(head().phase, before, deadline.poll_ms(limits::group_slice_ms));
      head().sleepers.fetch_sub(1);
      if (complete()) return;
      if (const std::uint32_t word = head().broken.load(); word != 0) throw_broken(word);
      look_at_missing();
      if (on_interrupt_) on_interrupt_();
      if (deadline.passed()) break_group(Fault::gave_up, rank_);
    }
  } catch (...) {
    // Whatever ended the wait, the other ranks must not wait for this one.
    std::uint32_t none = 0;
    const auto word = static_cast<std::uint32_t>(Fault::gave_up) << 24U | static_cast<std::uint32_t>(rank_);
    if (head().broken.compare_exchange_strong(none, word)) system::futex_wake_all(head().phase);
    throw;
  }
}

void GroupSegment::look_at_missing() {
  for (std::size_t other = 0; other < ranks(); ++other) {
    if (state_of(other).arrivals.load() == phase_) continue;
    if (state_of(other).left.load() != 0) break_group(Fault::left, other);
    if (other != rank_ && has_died(other) && state_of(other).arrivals.load() != phase_) break_group(Fault::died, other);
  }
}

bool GroupSegment::has_died(std::size_t rank) {
  return !processes_[rank].valid() || system::poll_one(processes_[rank].get(), POLLIN, 0) > 0;
}

std::string GroupSegment::name_of_rank(std::size_t rank) const {
  return "rank " + std::to_string(rank) + " (" + members_[rank].name + ")";
}

void GroupSegment::compare_calls() {
  must_compare_ = false;
  const GroupCall& mine = state_of(rank_).calls[calls_ % 2];
  for (std::size_t other = 0; other < ranks(); ++other) {
    const GroupCall& theirs = state_of(other).calls[calls_ % 2];
    if (theirs == mine) continue;
    head().broken.store(static_cast<std::uint32_t>(Fault::differs) << 24U | static_cast<std::uint32_t>(other));
    throw GroupBroken("the ranks of the group make different calls: " + name_of_rank(rank_) + " calls " + mine.text() +
                      ", and " + name_of_rank(other) + " calls " + theirs.text() +
                      ". All ranks must make the same calls in the same order; make another group");
  }
}

// The first rank that notices says so to the others, so that all give the same reason.
void GroupSegment::break_group(Fault fault, std::size_t rank) {
  std::uint32_t word = 0;
  const auto wanted = static_cast<std::uint32_t>(fault) << 24U | static_cast<std::uint32_t>(rank);
  if (head().broken.compare_exchange_strong(word, wanted)) word = wanted;
  system::futex_wake_all(head().phase);
  if (word != wanted || fault != Fault::gave_up) throw_broken(word);
  std::string missing;
  for (std::size_t other = 0; other < ranks(); ++other)
    if (state_of(other).arrivals.load() != phase_) missing += (missing.empty() ? "" : ", ") + name_of_rank(other);
  throw TimeoutError(name_of_rank(rank_) + " waited " + std::to_string(timeout_s_) + " s in " +
                     state_of(rank_).calls[calls_ % 2].text() + ", and missing is " + missing +
                     ". Let all ranks make the same calls, or raise the group's time-out; make another group");
}

void GroupSegment::throw_broken(std::uint32_t word) const {
  const std::size_t rank = std::min<std::size_t>(word & 0xffffffU, ranks() - 1);
  const auto fault = static_cast<Fault>(word >> 24U);
  const char* what = fault == Fault::died      ? " has died"
                     : fault == Fault::left    ? " has left the group"
                     : fault == Fault::differs ? " made another call than the others"
                                               : " was interrupted, or gave up waiting for another rank";
  throw GroupBroken("the group is broken: " + name_of_rank(rank) + what +
                    ". Its ranks cannot go on; make another group of the workers that are left");
}

}  // namespace miniray
