// The channels that the wait_any() of one thread watches. Epoll finds the channels with bytes in the kernel; a list has
// the pending ones, which have messages in the inbox or unsent bytes. Quiet channels cost nothing.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/system.hpp"
#include "channel/channel_state.hpp"
#include "channel/spin.hpp"

namespace miniray {

class WaitSet {
 public:
  explicit WaitSet(std::optional<int> spin_us = {}) : spin_(spin_budget_us(spin_us)) {}
  ~WaitSet();
  WaitSet(const WaitSet&) = delete;
  WaitSet& operator=(const WaitSet&) = delete;

  /// Watches these channels and no others. It is cheap if they are (nearly) the same as last time.
  void watch(std::span<Channel* const> channels);
  /// Waits until channels are ready. Returns their positions in the last watch(), in ascending order; no position if
  /// the deadline has passed. Throws UsageError if another thread closes one of the channels meanwhile, or begins to
  /// wait for it.
  std::vector<std::size_t> wait(const Deadline& deadline);
  /// Returns whether this process created the set, and did not inherit it by a fork.
  [[nodiscard]] bool is_ours() const;

  // Channels call these, in any thread.
  void mark_pending(Channel::State& channel);
  void drop(Channel::State& channel);

  /// Checks that the members refer to this set, and that the list of pending channels agrees with their flags.
  void check_invariants() const;

 private:
  void add(Channel::State& channel);
  void drop_locked(Channel::State& channel);
  void mark_pending_locked(Channel::State& channel);
  std::vector<Channel::State*> take_pending();
  void collect(Channel::State& channel, std::vector<std::size_t>& ready);
  void look_around();
  void require_all_channels();

  // One mutex for all sets, because a channel may go from one set to another. It is never held during a wait.
  static std::mutex& mutex();

  system::Epoll epoll_;
  Spin spin_;
  std::vector<Channel*> watched_;  // as watch() got them, to see whether they have changed
  bool changed_ = false;           // a member was dropped since
  bool waiting_ = false;
  bool channel_taken_ = false;  // during a wait, another thread closed a member or took it into its own set
  std::vector<Channel::State*> members_;
  std::vector<Channel::State*> pending_;
  std::uint64_t stamp_ = 0;
  std::uint64_t generation_ = process_generation();
};

}  // namespace miniray
