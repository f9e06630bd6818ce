#include "base/event_loop.hpp"

namespace miniray {

EventLoop::Watch& EventLoop::Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    reset();
    loop_ = std::exchange(other.loop_, nullptr);
    id_ = other.id_;
    fd_ = other.fd_;
  }
  return *this;
}

void EventLoop::Watch::reset() {
  EventLoop* const loop = std::exchange(loop_, nullptr);
  if (loop == nullptr) return;
  loop->epoll_.remove(fd_);
  loop->actions_.erase(id_);
}

EventLoop::Watch EventLoop::watch(int descriptor, Action action, system::Interest interest) {
  const std::uint64_t id = ++last_id_;
  epoll_.add(descriptor, reinterpret_cast<void*>(id), interest);  // NOLINT(performance-no-int-to-ptr): a tag
  actions_[id] = std::make_shared<Action>(std::move(action));
  return {this, id, descriptor};
}

bool EventLoop::poll(int timeout_ms) {
  ready_.clear();
  if (!epoll_.wait(ready_, timeout_ms)) return false;
  const std::vector<void*> ready = std::move(ready_);  // an action may call poll() itself
  for (void* tag : ready) {
    const auto found = actions_.find(reinterpret_cast<std::uint64_t>(tag));
    if (found == actions_.end()) continue;                 // an earlier action has destroyed this watch
    const std::shared_ptr<Action> action = found->second;  // stays alive even if the action destroys its own watch
    (*action)();
  }
  return true;
}

}  // namespace miniray
