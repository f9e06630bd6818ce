// The channels that one wait_any watches: those with bytes in the kernel through epoll; those with messages in the
// inbox, or with something left to write, through a list. Quiet channels cost nothing.
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

  /// Watches these and no others. Cheap if they are the same as last time, or nearly.
  void watch(std::span<Channel* const> channels);
  /// Positions in the last watch(), in order; none when the deadline has passed.
  std::vector<std::size_t> wait(const Deadline& deadline);
  /// Whether this process made it, and did not inherit it from its parent.
  [[nodiscard]] bool is_ours() const;

  // From the channels, in whatever thread uses them:
  void note(Channel::State& channel);
  void forget(Channel::State& channel);

  /// The members know that they are here, and those on the list of the noted ones that they are on it.
  void check_invariants() const;

 private:
  void add(Channel::State& channel);
  void forget_locked(Channel::State& channel);
  void note_locked(Channel::State& channel);
  std::vector<Channel::State*> take_noted();
  void collect(Channel::State& channel, std::vector<std::size_t>& ready);
  void look_around();
  void require_not_robbed();

  // One for all sets, since channels go from one to another. Held for moments, never while waiting.
  static std::mutex& mutex();

  system::Epoll epoll_;
  Spin spin_;
  std::vector<Channel*> watched_;  // as given, to see that nothing changed
  bool changed_ = false;           // somebody left since
  bool waiting_ = false;
  bool robbed_ = false;  // another thread took one of the channels that this one waits for
  std::vector<Channel::State*> members_;
  std::vector<Channel::State*> noted_;
  std::uint64_t stamp_ = 0;
  std::uint64_t generation_ = process_generation();
};

}  // namespace miniray
