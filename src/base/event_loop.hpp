// A single-threaded event loop: it calls an action whenever a descriptor is ready.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/system.hpp"

namespace miniray {

class EventLoop {
 public:
  using Action = std::function<void()>;

  /// As long as a watch lives, poll() calls its action whenever its descriptor is ready. Destroy the watch before the
  /// descriptor is closed, and before the loop.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept : loop_(std::exchange(other.loop_, nullptr)), id_(other.id_), fd_(other.fd_) {}
    Watch& operator=(Watch&& other) noexcept;
    ~Watch() { reset(); }
    void reset();
    [[nodiscard]] bool active() const { return loop_ != nullptr; }

   private:
    friend class EventLoop;
    Watch(EventLoop* loop, std::uint64_t id, int fd) : loop_(loop), id_(id), fd_(fd) {}
    EventLoop* loop_ = nullptr;
    std::uint64_t id_ = 0;
    int fd_ = -1;
  };

  [[nodiscard]] Watch watch(int descriptor, Action action, system::Interest interest = system::Interest::readable);
  /// Waits once and calls the actions of all ready descriptors. An action may destroy any watch. Returns false if a
  /// signal interrupted the wait.
  bool poll(int timeout_ms);

 private:
  system::Epoll epoll_;
  std::map<std::uint64_t, std::shared_ptr<Action>> actions_;  // an id is never used twice
  std::uint64_t last_id_ = 0;
  std::vector<void*> ready_;
};

}  // namespace miniray
