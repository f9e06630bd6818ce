// wait_any: one epoll set for each thread, remembered between calls, and a list of channels with messages in the inbox.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.hpp"
#include "channel/wait_set.hpp"
#include "miniray/channel.hpp"
#include "miniray/error.hpp"

namespace miniray {

WaitSet::~WaitSet() {
  for (Channel::State* member : members_) member->wait = {};
}

void WaitSet::add(Channel::State& channel) {
  if (channel.wait.set != nullptr) channel.wait.set->forget(channel);
  if (channel.socket.valid()) epoll_.add(channel.socket.get(), &channel);
  channel.wait.set = this;
  members_.push_back(&channel);
  if (channel.has_message()) note_message(channel);
}

void WaitSet::note_message(Channel::State& channel) {
  if (std::exchange(channel.wait.listed, true)) return;
  with_messages_.push_back(&channel);
}

bool WaitSet::is_ours() const { return generation_ == process_generation(); }

void WaitSet::forget(Channel::State& channel) {
  if (channel.socket.valid() && is_ours()) epoll_.remove(channel.socket.get());
  std::erase(members_, &channel);
  std::erase(with_messages_, &channel);
  channel.wait = {};
  changed_ = true;
}

void WaitSet::watch(std::span<Channel* const> channels) {
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
  for (Channel::State* member : gone) {
    if (member->socket.valid()) epoll_.remove(member->socket.get());
    std::erase(with_messages_, member);
    member->wait = {};
  }
  members_.erase(gone.begin(), gone.end());
  watched_.assign(channels.begin(), channels.end());
  changed_ = false;
}

void WaitSet::collect(Channel::State& channel, std::vector<std::size_t>& ready) {
  if (!channel.ready()) return;
  ready.push_back(channel.wait.position);
}

std::vector<std::size_t> WaitSet::wait(const Deadline& deadline) {
  std::vector<std::size_t> ready;
  std::vector<void*> readable;
  while (true) {
    std::erase_if(with_messages_, [](Channel::State* channel) {
      return !channel->has_message() && (channel->wait.listed = false, true);
    });
    for (Channel::State* channel : with_messages_) ready.push_back(channel->wait.position);
    readable.clear();
    const auto look = [&] { return epoll_.wait(readable, 0) && !readable.empty(); };
    if (!look() && ready.empty() && !deadline.passed() && !spin_.until(look)) {
      if (!epoll_.wait(readable, deadline.poll_ms(limits::wait_slice_ms)) || readable.empty()) look_around();
      spin_.woke();
    }
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
    return;
  }
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
