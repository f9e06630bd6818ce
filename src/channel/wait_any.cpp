// wait_any: one epoll set for each thread, remembered between calls, and a list of channels that need a look anyway.
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
  link.listed = false;
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

void WaitSet::add(Channel::State& channel) {
  if (WaitSet* const other = channel.wait.set) {
    other->robbed_ = other->robbed_ || other->waiting_;
    other->forget_locked(channel);
  }
  MINIRAY_CHECK(channel.wait.set == nullptr && !channel.wait.listed, channel.options.peer);
  if (channel.socket.valid()) epoll_.add(channel.socket.get(), &channel);
  channel.wait.set = this;
  members_.push_back(&channel);
  note_locked(channel);  // it may have something already: the first wait looks
}

void WaitSet::note_locked(Channel::State& channel) {
  if (!std::exchange(channel.wait.listed, true)) noted_.push_back(&channel);
}

void WaitSet::note(Channel::State& channel) {
  const std::scoped_lock lock(mutex());
  if (channel.wait.set == this) note_locked(channel);
}

void WaitSet::forget_locked(Channel::State& channel) {
  if (channel.socket.valid() && is_ours()) epoll_.remove(channel.socket.get());
  const std::size_t removed = std::erase(members_, &channel), unlisted = std::erase(noted_, &channel);
  MINIRAY_CHECK(removed == 1, channel.options.peer, removed);
  MINIRAY_CHECK(unlisted == (channel.wait.listed ? 1U : 0U), channel.options.peer, unlisted);
  unlink(channel.wait);
  changed_ = true;
}

void WaitSet::forget(Channel::State& channel) {
  const std::scoped_lock lock(mutex());
  if (channel.wait.set != this) return;
  robbed_ = robbed_ || waiting_;
  forget_locked(channel);
}

void WaitSet::watch(std::span<Channel* const> channels) {
  if (waiting_) throw UsageError("wait_any is waiting already in this thread; a signal handler cannot call it too");
  const std::scoped_lock lock(mutex());
  const bool same =
      channels.size() == watched_.size() && std::memcmp(channels.data(), watched_.data(), channels.size_bytes()) == 0;
  if (same && !changed_) return;
  ++stamp_;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    Channel::State& channel = *channels[i]->state_;
    if (channel.wait.set != this) add(channel);
    channel.wait.position = i;
    channel.wait.stamp = stamp_;
  }
  const auto gone =
      std::ranges::partition(members_, [&](const Channel::State* member) { return member->wait.stamp == stamp_; });
  const std::vector<Channel::State*> leaving(gone.begin(), gone.end());
  for (Channel::State* member : leaving) forget_locked(*member);
  watched_.assign(channels.begin(), channels.end());
  changed_ = false;
}

std::vector<Channel::State*> WaitSet::take_noted() {
  const std::scoped_lock lock(mutex());
  for (Channel::State* channel : noted_) channel->wait.listed = false;
  return std::exchange(noted_, {});
}

// ready() notes the channel again, should it still have something.
void WaitSet::collect(Channel::State& channel, std::vector<std::size_t>& ready) {
  if (channel.wait.set == this && channel.ready()) ready.push_back(channel.wait.position);
}

void WaitSet::check_invariants() const {
  const std::scoped_lock lock(mutex());
  std::size_t listed = 0;
  for (const Channel::State* const member : members_) {
    MINIRAY_CHECK(member->wait.set == this, member->options.peer);
    MINIRAY_CHECK(changed_ || member->wait.position < watched_.size(), member->wait.position, watched_.size());
    MINIRAY_CHECK(member->wait.stamp <= stamp_, member->wait.stamp, stamp_);
    listed += member->wait.listed ? 1 : 0;
  }
  MINIRAY_CHECK(listed == noted_.size(), listed, noted_.size());
  for (const Channel::State* const noted : noted_)
    MINIRAY_CHECK(noted->wait.set == this && noted->wait.listed, noted->options.peer);
  MINIRAY_CHECK(changed_ || members_.size() <= watched_.size(), members_.size(), watched_.size());
}

void WaitSet::require_not_robbed() {
  const std::scoped_lock lock(mutex());
  if (robbed_)
    throw UsageError("wait_any: another thread closed, or waits for, one of the channels that this one waits for");
}

std::vector<std::size_t> WaitSet::wait(const Deadline& deadline) {
  struct Waiting {
    explicit Waiting(WaitSet& waiting_set) : set(waiting_set) { set.waiting_ = true, set.robbed_ = false; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { set.waiting_ = false; }
    WaitSet& set;
  } const waiting(*this);
  std::vector<std::size_t> ready;
  std::vector<void*> readable;
  while (true) {
    bool unsent = false;
    for (Channel::State* channel : take_noted()) {
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
    require_not_robbed();
    for (void* tag : readable) collect(*static_cast<Channel::State*>(tag), ready);
    if (!ready.empty()) {
      std::ranges::sort(ready);
      const auto repeated = std::ranges::unique(ready);
      ready.erase(repeated.begin(), repeated.end());
      return ready;
    }
    if (deadline.passed()) return ready;
  }
}

// A signal came, or a slice is over and one may have slipped by.
void WaitSet::look_around() {
  for (Channel::State* member : members_) {
    if (!member->options.on_interrupt) continue;
    member->options.on_interrupt();
    break;
  }
  require_not_robbed();
  for (Channel::State* member : members_) member->look_around();
}

std::vector<std::size_t> wait_any(std::span<Channel* const> channels, std::optional<double> timeout_s) {
  if (channels.empty()) throw UsageError("wait_any was given nothing to wait for");
  // Remembered between calls: most programs wait for the same channels again and again. A child starts anew.
  thread_local std::unique_ptr<WaitSet> set;
  if (!set || !set->is_ours()) set = std::make_unique<WaitSet>();
  set->watch(channels);
  return set->wait(Deadline::in_seconds(timeout_s));
}

}  // namespace miniray
