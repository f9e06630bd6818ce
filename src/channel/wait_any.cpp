// wait_any(): each thread has one WaitSet, which it keeps between calls.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.hpp"
#include "channel/wait_set.hpp"
#include "miniray/channel.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

void unlink(Channel::State::WaitLink& link) {
  link.set = nullptr;
  link.position = 0;
  link.stamp = 0;
  link.pending = false;
}

}  // namespace

std::mutex& WaitSet::mutex() {
  static auto* const shared = new std::mutex;  // never destroyed: threads may end after static destructors ran
  return *shared;
}

WaitSet::~WaitSet() {
  const std::scoped_lock lock(mutex());
  for (Channel::State* member : members_) unlink(member->wait);
}

bool WaitSet::is_ours() const { return generation_ == process_generation(); }

// A channel is in one set at a time. If another thread waits for it, that wait throws.
void WaitSet::add(Channel::State& channel) {
  channel.require_ours();
  if (WaitSet* const other = channel.wait.set) {
    other->channel_taken_ = other->channel_taken_ || other->waiting_;
    other->drop_locked(channel);
  }
  MINIRAY_CHECK(channel.wait.set == nullptr && !channel.wait.pending, channel.options.peer);
  if (channel.socket.valid()) epoll_.add(channel.socket.get(), &channel);
  channel.wait.set = this;
  members_.push_back(&channel);
  mark_pending_locked(channel);  // its inbox may have a message already
}

void WaitSet::mark_pending_locked(Channel::State& channel) {
  if (!std::exchange(channel.wait.pending, true)) pending_.push_back(&channel);
}

void WaitSet::mark_pending(Channel::State& channel) {
  const std::scoped_lock lock(mutex());
  if (channel.wait.set == this) mark_pending_locked(channel);
}

void WaitSet::drop_locked(Channel::State& channel) {
  if (channel.socket.valid() && is_ours()) epoll_.remove(channel.socket.get());
  const std::size_t removed = std::erase(members_, &channel), unlisted = std::erase(pending_, &channel);
  MINIRAY_CHECK(removed == 1, channel.options.peer, removed);
  MINIRAY_CHECK(unlisted == (channel.wait.pending ? 1U : 0U), channel.options.peer, unlisted);
  unlink(channel.wait);
  changed_ = true;
}

void WaitSet::drop(Channel::State& channel) {
  const std::scoped_lock lock(mutex());
  if (channel.wait.set != this) return;
  channel_taken_ = channel_taken_ || waiting_;
  drop_locked(channel);
}

void WaitSet::watch(std::span<Channel* const> channels) {
  if (waiting_) throw UsageError("wait_any is already waiting in this thread; do not call it from a signal handler");
  const std::scoped_lock lock(mutex());
  const bool same =
      channels.size() == watched_.size() && std::memcmp(channels.data(), watched_.data(), channels.size_bytes()) == 0;
  if (same && !changed_) return;
  changed_ = true;  // until all is done: add() may throw
  ++stamp_;         // members that do not get this stamp are not in `channels`, and are dropped
  for (std::size_t i = 0; i < channels.size(); ++i) {
    Channel::State& channel = *channels[i]->state_;
    if (channel.wait.set != this) add(channel);
    channel.wait.position = i;
    channel.wait.stamp = stamp_;
  }
  const auto gone =
      std::ranges::partition(members_, [&](const Channel::State* member) { return member->wait.stamp == stamp_; });
  const std::vector<Channel::State*> leaving(gone.begin(), gone.end());
  for (Channel::State* member : leaving) drop_locked(*member);
  watched_.assign(channels.begin(), channels.end());
  changed_ = false;
}

std::vector<Channel::State*> WaitSet::take_pending() {
  const std::scoped_lock lock(mutex());
  for (Channel::State* channel : pending_) channel->wait.pending = false;
  return std::exchange(pending_, {});
}

// If the channel still has a message or unsent bytes, ready() marks it as pending again.
// If reading fails, the channel is ready too: the error concerns this channel alone, and receive() throws it.
void WaitSet::collect(Channel::State& channel, std::vector<std::size_t>& ready) {
  if (channel.wait.set != this) return;
  const std::size_t position = channel.wait.position;
  try {
    if (channel.ready()) ready.push_back(position);
  } catch (const UsageError&) {  // another thread uses the channel
    throw;
  } catch (const Error&) {  // the channel has made one of what the peer sent, even if that was too much
    channel.postpone(std::current_exception());
    ready.push_back(position);
    const std::scoped_lock lock(mutex());
    channel_taken_ = false;  // it was this thread that dropped the channel
  }
}

void WaitSet::check_invariants() const {
  const std::scoped_lock lock(mutex());
  std::size_t pending = 0;
  for (const Channel::State* const member : members_) {
    MINIRAY_CHECK(member->wait.set == this, member->options.peer);
    MINIRAY_CHECK(changed_ || member->wait.position < watched_.size(), member->wait.position, watched_.size());
    MINIRAY_CHECK(member->wait.stamp <= stamp_, member->wait.stamp, stamp_);
    pending += member->wait.pending ? 1 : 0;
  }
  MINIRAY_CHECK(pending == pending_.size(), pending, pending_.size());
  for (const Channel::State* const channel : pending_)
    MINIRAY_CHECK(channel->wait.set == this && channel->wait.pending, channel->options.peer);
  MINIRAY_CHECK(changed_ || members_.size() <= watched_.size(), members_.size(), watched_.size());
}

void WaitSet::require_all_channels() {
  const std::scoped_lock lock(mutex());
  if (channel_taken_)
    throw UsageError(
        "wait_any: another thread closed one of these channels, or waits for it too. Let one thread at a "
        "time use a channel");
}

std::vector<std::size_t> WaitSet::wait(const Deadline& deadline) {
  struct Waiting {
    explicit Waiting(WaitSet& waiting_set) : set(waiting_set) { set.waiting_ = true, set.channel_taken_ = false; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { set.waiting_ = false; }
    WaitSet& set;
  } const waiting(*this);
  std::vector<std::size_t> ready;
  std::vector<void*> readable;
  while (true) {
    bool unsent = false;
    for (Channel::State* channel : take_pending()) {
      collect(*channel, ready);
      unsent = unsent || channel->has_unsent();
    }
    readable.clear();
    const auto look = [&] { return epoll_.wait(readable, 0) && !readable.empty(); };
    if (!look() && ready.empty() && !deadline.passed() && !spin_.until(look)) {
      const int slice_ms = unsent ? limits::unsent_slice_ms : limits::wait_slice_ms;
      if (!epoll_.wait(readable, deadline.poll_ms(slice_ms)) || readable.empty()) look_around();
      spin_.woke();
    }
    require_all_channels();  // a tag of a channel that was destroyed must not be used
    for (void* tag : readable) collect(*static_cast<Channel::State*>(tag), ready);
    if (!ready.empty()) {
      std::ranges::sort(ready);
      const auto repeated = std::ranges::unique(ready);  // a channel may be both pending and readable
      ready.erase(repeated.begin(), repeated.end());
      return ready;
    }
    if (deadline.passed()) return ready;
  }
}

// Called after a signal, and after every slice, because a signal may have come just before the wait.
void WaitSet::look_around() {
  for (Channel::State* member : members_) {
    if (!member->options.on_interrupt) continue;
    member->options.on_interrupt();
    break;
  }
  require_all_channels();
  for (Channel::State* member : members_) member->look_around();
}

std::vector<std::size_t> wait_any(std::span<Channel* const> channels, Timeout timeout_s) {
  if (channels.empty()) throw UsageError("wait_any was given nothing to wait for");
  // Kept between calls, because most programs wait for the same channels again and again. A child makes its own set.
  thread_local std::unique_ptr<WaitSet> set;
  if (!set || !set->is_ours()) set = std::make_unique<WaitSet>();
  set->watch(channels);
  return set->wait(Deadline::in_seconds(timeout_s));
}

}  // namespace miniray
