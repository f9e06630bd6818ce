// The channels that one wait_any watches: those with bytes in the kernel through epoll, those with messages already
// in the inbox through a list. Quiet channels cost nothing.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/system.hpp"
#include "channel/channel_state.hpp"

namespace miniray {

class WaitSet {
 public:
  WaitSet() = default;
  ~WaitSet();
  WaitSet(const WaitSet&) = delete;
  WaitSet& operator=(const WaitSet&) = delete;

  /// Watches these and no others. Cheap if they are the same as last time, or nearly.
  void watch(std::span<Channel* const> channels);
  /// Positions in the last watch(), in order; none when the deadline has passed.
  std::vector<std::size_t> wait(const Deadline& deadline);

  /// Whether this process made it, and did not inherit it from its parent.
  [[nodiscard]] bool is_ours() const;

  // From the channels:
  void note_message(Channel::State& channel);
  void forget(Channel::State& channel);

 private:
  void add(Channel::State& channel);
  void look_around();
  void collect(Channel::State& channel, std::vector<std::size_t>& ready);

  system::Epoll epoll_;
  Spin spin_{spin_budget_us({})};
  std::vector<Channel*> watched_;  // as given, to see that nothing changed
  bool changed_ = false;           // somebody left since
  std::vector<Channel::State*> members_;
  std::vector<Channel::State*> with_messages_;
  std::uint64_t stamp_ = 0;
  std::uint64_t generation_ = process_generation();
};

}  // namespace miniray
