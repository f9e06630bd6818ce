#include "base/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "miniray/error.hpp"

namespace miniray::system {

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, int timeout_ms) {
  const timespec timeout{timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Fd watch_process(pid_t pid) {
  const auto number = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (number >= 0) return Fd(number);
  if (errno == ESRCH) return {};
  throw SystemError("watch process " + std::to_string(pid), errno);
}

}  // namespace miniray::system
