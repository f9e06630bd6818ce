#include "base/fd.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "base/check.hpp"

namespace miniray {
namespace {

// The one piece of process-wide state: fork(2) copies the whole process, so the descriptors that a child must close are
// a property of the process. It is never destroyed, because static destructors may still close descriptors.
struct Registry {
  std::mutex mutex;
  std::vector<bool> is_private;  // by descriptor number
  std::atomic<std::uint64_t> generation{0};
};

void close_private_descriptors();

Registry& registry() {
  static Registry* const instance = [] {
    auto* made = new Registry;
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, close_private_descriptors);
    return made;
  }();
  return *instance;
}

// Made before there are threads. Otherwise ThreadSanitizer, in a program whose MiniRay it has not instrumented, does
// not see the lock with which the first thread makes it, and reports a race with the next one.
[[maybe_unused]] const Registry& made_before_threads = registry();

thread_local std::span<const int> kept_across_fork;

// Runs in the child before fork() returns, while this thread holds the mutex: pthread_atfork has locked it.
void close_private_descriptors() {
  Registry& all = registry();
  ++all.generation;
  for (const int kept : kept_across_fork) {
    if (static_cast<std::size_t>(kept) < all.is_private.size()) all.is_private[static_cast<std::size_t>(kept)] = false;
  }
  // One close_range() closes neighbouring numbers together, because a server has thousands of descriptors.
  for (std::size_t first = 0; first < all.is_private.size(); ++first) {
    if (!all.is_private[first]) continue;
    std::size_t last = first;
    while (last + 1 < all.is_private.size() && all.is_private[last + 1]) ++last;
    close_range(static_cast<unsigned>(first), static_cast<unsigned>(last), 0);
    first = last;
  }
  all.is_private.clear();
  all.mutex.unlock();
}

}  // namespace

Fd::Fd(int number) : number_(number) {
  MINIRAY_CHECK(number >= 0, number);
  Registry& all = registry();
  generation_ = all.generation;
  const std::scoped_lock lock(all.mutex);
  const auto index = static_cast<std::size_t>(number);
  if (all.is_private.size() <= index) all.is_private.resize(index + 64);
  all.is_private[index] = true;
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = std::exchange(other.number_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

int Fd::release() {
  Registry& all = registry();
  if (number_ >= 0 && generation_ == all.generation) {
    const std::scoped_lock lock(all.mutex);
    const auto index = static_cast<std::size_t>(number_);
    if (index < all.is_private.size()) all.is_private[index] = false;
  }
  return std::exchange(number_, -1);
}

void Fd::reset() {
  if (number_ < 0) return;
  const bool ours = generation_ == registry().generation;
  const int number = release();
  if (ours) close(number);  // in a child, the fork has closed it, and the number may belong to another file by now
}

std::uint64_t process_generation() { return registry().generation; }

KeepAcrossFork::KeepAcrossFork(std::span<const int> numbers) { kept_across_fork = numbers; }
KeepAcrossFork::~KeepAcrossFork() { kept_across_fork = {}; }

}  // namespace miniray
