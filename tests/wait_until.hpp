// Waiting for a condition, in tests. A wait that ends in vain says what it waited for.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace miniray {

/// The deadline of a loop.
class Patience {
 public:
  explicit Patience(std::string what) : what_(std::move(what)) {}

  /// Throws when the loop has gone on for a minute: what it does takes milliseconds on a machine that is not busy.
  void check() const {
    if (std::chrono::steady_clock::now() > deadline_) throw std::runtime_error("waited in vain for " + what_);
  }

 private:
  std::string what_;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + std::chrono::minutes(1);
};

/// Polls until the condition is true.
template <class Condition>
void wait_until(const std::string& what, Condition condition) {
  for (const Patience patience(what); !condition(); patience.check())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Waits until this thread, of any process, waits in the kernel: in a call whose name there contains `place`, or in any
/// but for a lock.
inline void wait_until_blocked(pid_t thread, const std::string& place = {}) {
  wait_until("a wait of thread " + std::to_string(thread) + " in the kernel " + place, [&] {
    std::string where;
    std::ifstream file("/proc/" + std::to_string(thread) + "/wchan");
    std::getline(file, where);
    if (!place.empty()) return where.find(place) != std::string::npos;
    return !where.empty() && where != "0" && !where.starts_with("futex");
  });
}

}  // namespace miniray
