#include "group/segment.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/futex.hpp"
#include "base/process.hpp"
#include "channel/spin.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr std::size_t data_alignment = 4096;

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

std::size_t GroupNodes::node_of(std::size_t rank) const {
  for (std::size_t node = 0; node < ranks.size(); ++node)
    if (std::ranges::binary_search(ranks[node], rank)) return node;
  MINIRAY_CHECK(false, rank);
  return 0;
}

std::size_t GroupSegment::Layout::data_begin() const {
  const std::size_t head_bytes = sizeof(GroupHead) + ranks * (sizeof(GroupRank) + sizeof(GroupReason));
  return (head_bytes + data_alignment - 1) / data_alignment * data_alignment;
}

Fd GroupSegment::make(const Layout& layout) {
  Fd memory = system::sealed_memory("miniray-group", layout.bytes());
  if (!memory.valid())
    throw Error("cannot make a group of " + std::to_string(layout.ranks) + " ranks: the system has no " +
                std::to_string(layout.bytes()) + " bytes of shared memory left; free some, or use fewer ranks");
  return memory;
}

GroupSegment::GroupSegment(Fd memory, const Layout& layout, Settings settings)
    : layout_(layout),
      mapping_([&] {
        const std::size_t bytes = memory.valid() ? system::sealed_memory_bytes(memory.get()) : 0;
        const bool known = settings.nodes.here < settings.nodes.size() && settings.rank < settings.members.size();
        if (!known || bytes != layout.bytes())
          throw ProtocolError("the invitation to a group is malformed (rank " + std::to_string(settings.rank) + " of " +
                              std::to_string(settings.members.size()) + ", " + std::to_string(bytes) + " bytes)");
        return system::Mapping(memory.get(), bytes);
      }()),
      settings_(std::move(settings)),
      index_([&] {
        const std::vector<std::size_t>& here = settings_.nodes.ranks[settings_.nodes.here];
        const auto found = std::ranges::find(here, settings_.rank);
        MINIRAY_CHECK(found != here.end() && here.size() == layout.ranks, settings_.rank, here.size());
        return static_cast<std::size_t>(found - here.begin());
      }()),
      spin_ns_(spin_budget_us({}) * 1000LL),
      crowded_(static_cast<int>(layout.ranks) > system::usable_cpus()),
      generation_(process_generation()) {
  for (const std::size_t rank : settings_.nodes.ranks[settings_.nodes.here])
    processes_.push_back(rank == settings_.rank ? Fd() : watch_process(settings_.members[rank].pid));
}

void GroupSegment::leave() {
  if (!is_ours()) return;
  state_of(index_).left.store(1);
  system::futex_wake_all(head().phase);
}

GroupRank& GroupSegment::state_of(std::size_t index) const {
  MINIRAY_CHECK(index < ranks(), index, ranks());
  return reinterpret_cast<GroupRank*>(mapping_.bytes().data() + sizeof(GroupHead))[index];
}

GroupReason& GroupSegment::reason_of(std::size_t index) const {
  MINIRAY_CHECK(index < ranks(), index, ranks());
  std::byte* const begin = mapping_.bytes().data() + sizeof(GroupHead) + ranks() * sizeof(GroupRank);
  return reinterpret_cast<GroupReason*>(begin)[index];
}

std::byte* GroupSegment::area(std::size_t number) const {
  MINIRAY_CHECK(number < layout_.areas, number, layout_.areas);
  return mapping_.bytes().data() + layout_.data_begin() + (2 * number + round_ % 2) * layout_.area_bytes;
}

void GroupSegment::begin(const GroupCall& call) {
  if (!is_ours())
    throw UsageError(
        "this rank of a group belongs to the process that joined, and this process is a child of that one");
  if (const std::uint32_t word = head().broken.load(); word != 0) throw_broken(word);
  state_of(index_).calls[++calls_ % 2] = call;
  must_compare_ = true;
  // A rank of another machine that gave up may have sent its part of this call before.
  if (look_outside_) look_outside_();
}

// The last rank to arrive completes the phase. The store of `phase` and the load of `sleepers` are sequentially
// consistent, as are those of a rank that goes to sleep, so that no rank sleeps through the end of its phase.
void GroupSegment::sync() {
  ++phase_;
  state_of(index_).arrivals.store(phase_, std::memory_order_relaxed);
  if (head().arrived.fetch_add(1) + 1 == phase_ * static_cast<std::uint32_t>(ranks())) {
    head().phase.store(phase_);
    if (head().sleepers.load() > 0) system::futex_wake_all(head().phase);
  } else if (!spin()) {
    sleep_until_complete(Deadline::in_seconds(settings_.timeout_s));
  }
  if (must_compare_) compare_calls();
}

bool GroupSegment::spin() {
  if (spin_ns_ == 0) return complete();
  const std::int64_t until = now_ns() + spin_ns_;
  do {
    // With more ranks than cores, a rank that spins takes time from the one that it waits for.
    for (int look = 0; look < (crowded_ ? 1 : limits::group_looks_per_yield); ++look) {
      if (complete()) return true;
      system::pause();
    }
    system::yield();
  } while (now_ns() < until);
  return complete();
}

void GroupSegment::sleep_until_complete(const Deadline& deadline) {
  const std::uint32_t before = phase_ - 1;
  breaking([&] {
    while (!complete()) {
      head().sleepers.fetch_add(1);
      system::futex_wait(head().phase, before, deadline.poll_ms(limits::group_slice_ms));
      head().sleepers.fetch_sub(1);
      if (complete()) return;
      if (const std::uint32_t word = head().broken.load(); word != 0) throw_broken(word);
      look_at_missing();
      if (look_outside_) look_outside_();
      if (settings_.on_interrupt) settings_.on_interrupt();
      if (deadline.passed()) time_out(missing_here());
    }
  });
}

// A rank of this machine that has died or left cannot take part in the call.
void GroupSegment::look_at(std::size_t index) {
  if (state_of(index).left.load() != 0) break_group(Fault::left, index);
  if (index != index_ && has_died(index)) break_group(Fault::died, index);
}

void GroupSegment::look_at_missing() {
  for (std::size_t other = 0; other < ranks(); ++other) {
    if (state_of(other).arrivals.load() == phase_) continue;
    if (state_of(other).left.load() != 0) break_group(Fault::left, other);
    if (other != index_ && has_died(other) && state_of(other).arrivals.load() != phase_)
      break_group(Fault::died, other);
  }
}

void GroupSegment::look_around(const Deadline& deadline, const std::function<std::string()>& missing) {
  if (const std::uint32_t word = head().broken.load(); word != 0) throw_broken(word);
  for (std::size_t other = 0; other < ranks(); ++other) look_at(other);
  if (look_outside_) look_outside_();
  if (settings_.on_interrupt) settings_.on_interrupt();
  if (deadline.passed()) time_out(missing());
}

bool GroupSegment::has_died(std::size_t index) {
  return !processes_[index].valid() || system::poll_one(processes_[index].get(), POLLIN, 0) > 0;
}

std::string GroupSegment::name_of_rank(std::size_t rank) const {
  return "rank " + std::to_string(rank) + " (" + settings_.members[rank].name + ")";
}

std::string GroupSegment::name_of_index(std::size_t index) const {
  return name_of_rank(settings_.nodes.ranks[settings_.nodes.here][index]);
}

void GroupSegment::compare_calls() {
  must_compare_ = false;
  const GroupCall& mine = call();
  for (std::size_t other = 0; other < ranks(); ++other) {
    const GroupCall& theirs = state_of(other).calls[calls_ % 2];
    if (theirs == mine) continue;
    const std::string reason = different_calls(name_of_index(index_), mine, name_of_index(other), theirs);
    if (set_broken(Fault::differs, other) && tell_outside_) tell_outside_(reason);
    throw GroupBroken(reason);
  }
}

std::string different_calls(const std::string& one, const GroupCall& call, const std::string& other,
                            const GroupCall& other_call) {
  return "the ranks of the group make different calls: " + one + " calls " + call.text() + ", and " + other +
         " calls " + other_call.text() + ". All ranks must make the same calls in the same order; make another group";
}

// Returns whether this rank is the first one of its machine that finds the group broken.
bool GroupSegment::set_broken(Fault fault, std::size_t index) {
  std::uint32_t none = 0;
  const auto word = static_cast<std::uint32_t>(fault) << 24U | static_cast<std::uint32_t>(index);
  const bool first = head().broken.compare_exchange_strong(none, word);
  system::futex_wake_all(head().phase);
  return first;
}

void GroupSegment::give_up() {
  if (set_broken(Fault::gave_up, index_) && tell_outside_) tell_outside_(reason_in(head().broken.load()));
}

// The first rank that notices says so to the others, so that all give the same reason.
void GroupSegment::break_group(Fault fault, std::size_t index) {
  const bool first = set_broken(fault, index);
  const std::uint32_t word = head().broken.load();
  if (first && tell_outside_) tell_outside_(reason_in(word));
  throw_broken(word);
}

void GroupSegment::fail(const std::string& reason) {
  GroupReason& told = reason_of(index_);
  std::size_t bytes = std::min(reason.size(), told.text.size());
  while (bytes < reason.size() && bytes > 0 && (static_cast<unsigned char>(reason[bytes]) & 0xC0U) == 0x80U)
    --bytes;  // not within a character of UTF-8
  told.bytes = static_cast<std::uint32_t>(bytes);
  std::memcpy(told.text.data(), reason.data(), told.bytes);
  break_group(Fault::told, index_);
}

std::string GroupSegment::missing_here() const {
  std::string missing;
  for (std::size_t other = 0; other < ranks(); ++other)
    if (state_of(other).arrivals.load() != phase_) missing += (missing.empty() ? "" : ", ") + name_of_index(other);
  return missing;
}

void GroupSegment::time_out(const std::string& missing) {
  if (!set_broken(Fault::gave_up, index_)) throw_broken(head().broken.load());
  if (tell_outside_) tell_outside_(reason_in(head().broken.load()));
  throw TimeoutError(name_of_index(index_) + " waited " + number_text(settings_.timeout_s) + " s in " + call().text() +
                     ", and missing is " + missing +
                     ". Let all ranks make the same calls, or raise the group's time-out; make another group");
}

std::string GroupSegment::reason_in(std::uint32_t word) const {
  const std::size_t index = std::min<std::size_t>(word & 0xffffffU, ranks() - 1);
  const auto fault = static_cast<Fault>(word >> 24U);
  if (fault == Fault::told) {
    const GroupReason& told = reason_of(index);
    return {told.text.data(), std::min<std::size_t>(told.bytes, told.text.size())};
  }
  const char* what = fault == Fault::died      ? " has died"
                     : fault == Fault::left    ? " has left the group"
                     : fault == Fault::differs ? " made another call than the others"
                                               : " was interrupted, or gave up waiting for another rank";
  return "the group is broken: " + name_of_index(index) + what +
         ". Its ranks cannot go on; make another group of the workers that are left";
}

void GroupSegment::throw_broken(std::uint32_t word) const { throw GroupBroken(reason_in(word)); }

}  // namespace miniray
