#include "miniray/continuation.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "miniray/coroutine.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

using Sources = std::vector<std::shared_ptr<Pending>>;

// Waits until some thread has done its part. False if the deadline has passed before.
template <class Done>
bool wait_for_another_thread(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                             const Deadline& deadline, Done done) {
  const std::optional<double> left_s = deadline.seconds_left();
  if (left_s) return changed.wait_for(lock, std::chrono::duration<double>(*left_s), done);
  changed.wait(lock, done);
  return true;
}

// Waits until one of them may be done, or the deadline has passed.
void wait_for_one(const Sources& sources, const Deadline& deadline) {
  Sources leaves;
  for (const std::shared_ptr<Pending>& source : sources) source->add_leaves(leaves);
  std::map<const void*, Sources> groups;
  for (std::shared_ptr<Pending>& leaf : leaves) {
    Sources& group = groups[leaf->group()];
    if (std::ranges::find(group, leaf) == group.end()) group.push_back(std::move(leaf));
  }
  constexpr double turn_s = limits::wait_turn_ms / 1000.0;
  const double short_s = std::min(deadline.seconds_left().value_or(turn_s), turn_s);
  if (groups.empty()) (void)sources.front()->wait(short_s);  // another thread is at it, or a coroutine elsewhere
  for (const auto& [key, group] : groups)
    group.front()->wait_any(group, groups.size() == 1 ? deadline.seconds_left() : short_s);
  for (const std::shared_ptr<Pending>& source : sources)
    if (!source->done()) source->look();
}

}  // namespace

namespace detail {

void throw_nothing_to_wait_for() { throw UsageError("when_any was given nothing to wait for: give it a future"); }

}  // namespace detail

struct PendingLocal::Inside {
  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  Sources sources;
  Needs needs;
  bool computing = false;  // some thread is in compute()
};

PendingLocal::PendingLocal(std::string text, Sources sources, Needs needs)
    : Pending(std::move(text)), inside_(std::make_unique<Inside>()) {
  inside_->sources = std::move(sources);
  inside_->needs = needs;
}
PendingLocal::~PendingLocal() = default;

Sources PendingLocal::sources() const {
  const std::scoped_lock lock(inside_->mutex);
  return inside_->sources;
}

void PendingLocal::listen() {
  const std::shared_ptr<PendingLocal> self = std::static_pointer_cast<PendingLocal>(shared_from_this());
  const Sources all = sources();
  for (const std::shared_ptr<Pending>& source : all)
    (void)detail::attach(*source, [self](bool dropped) { self->advance(dropped); });
  if (all.empty()) advance(false);
}

// Whether this thread is the one that computes.
bool PendingLocal::claim(std::size_t& first_done) {
  const std::scoped_lock lock(inside_->mutex);
  if (inside_->computing || done()) return false;
  const Sources& sources = inside_->sources;
  const auto found = std::ranges::find_if(sources, [](const auto& source) { return source->done(); });
  const bool due = inside_->needs == Needs::any
                       ? found != sources.end()
                       : std::ranges::all_of(sources, [](const auto& source) { return source->done(); });
  if (!due) return false;
  first_done = static_cast<std::size_t>(found - sources.begin());
  return inside_->computing = true;
}

// If whoever settles its sources is being destroyed, nobody expects callbacks, but those who wait get its failure.
void PendingLocal::advance(bool dropped) {
  std::size_t first_done = 0;
  if (!claim(first_done)) return;
  std::shared_ptr<Pending> further;
  std::exception_ptr failure;
  try {
    further = compute(first_done);
  } catch (...) {
    failure = std::current_exception();
  }
  Callbacks callbacks;
  if (!further) {
    const bool settled = settle_with([] {}, failure, callbacks);
    MINIRAY_CHECK(settled, function);
  }
  {
    const std::scoped_lock lock(inside_->mutex);
    if (further) {
      inside_->sources = {further};
      inside_->needs = Needs::all;
    }
    inside_->computing = false;
    inside_->changed.notify_all();
  }
  if (further)
    listen();
  else if (!dropped)
    run(callbacks);
}

bool PendingLocal::wait(std::optional<double> timeout_s) {
  const Deadline deadline = Deadline::in_seconds(timeout_s);
  while (true) {
    advance(false);
    if (done()) return true;
    if (deadline.passed()) return false;
    std::unique_lock lock(inside_->mutex);
    if (inside_->computing) {
      (void)wait_for_another_thread(inside_->changed, lock, deadline, [this] { return !inside_->computing; });
      continue;
    }
    const Sources all = inside_->sources;
    const Needs needs = inside_->needs;
    lock.unlock();
    const auto first = std::ranges::find_if(all, [](const auto& source) { return !source->done(); });
    if (first == all.end()) continue;
    if (needs == Needs::any && all.size() > 1)
      wait_for_one(all, deadline);
    else
      (void)(*first)->wait(deadline.seconds_left());
  }
}

void PendingLocal::look() {
  for (const std::shared_ptr<Pending>& source : sources())
    if (!source->done()) source->look();
  advance(false);
}

void PendingLocal::cancel() {
  for (const std::shared_ptr<Pending>& source : sources())
    if (!source->done()) source->cancel();
  advance(false);
}

std::string PendingLocal::describe_wait() const {
  for (const std::shared_ptr<Pending>& source : sources())
    if (!source->done()) return source->describe_wait();
  return "the continuation of " + function + " has not returned";
}

void PendingLocal::add_leaves(Sources& leaves) {
  for (const std::shared_ptr<Pending>& source : sources())
    if (!source->done()) source->add_leaves(leaves);
}

// --- Coroutines ------------------------------------------------------------------------------------------------------
struct PendingCoroutine::Inside {
  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::shared_ptr<Pending> awaited;    // none while the coroutine runs, or awaits what is not a future of MiniRay
  std::function<void()> resume_early;  // if the awaited future is done, and nobody has resumed the coroutine yet
  std::exception_ptr thrown;           // by a callback, when the coroutine had ended
};

PendingCoroutine::PendingCoroutine() : Pending("a coroutine"), inside_(std::make_unique<Inside>()) {}
PendingCoroutine::~PendingCoroutine() = default;

void PendingCoroutine::await(const std::shared_ptr<Pending>& source, std::function<void()> resume) {
  const auto self = std::static_pointer_cast<PendingCoroutine>(shared_from_this());
  {
    const std::scoped_lock lock(inside_->mutex);
    inside_->awaited = source;
    inside_->resume_early = nullptr;
    inside_->changed.notify_all();
  }
  // The coroutine may be resumed before attach() returns, and then it may await something else.
  std::function<void()> early = detail::attach(*source, [self, resume = std::move(resume)](bool /*dropped*/) {
    {
      const std::scoped_lock lock(self->inside_->mutex);
      self->inside_->awaited = nullptr;
      self->inside_->resume_early = nullptr;
    }
    resume();
    std::exception_ptr thrown;
    {
      const std::scoped_lock lock(self->inside_->mutex);
      self->inside_->changed.notify_all();
      thrown = std::exchange(self->inside_->thrown, nullptr);
    }
    if (thrown) std::rethrow_exception(thrown);
  });
  const std::scoped_lock lock(inside_->mutex);
  if (inside_->awaited == source) inside_->resume_early = std::move(early);
}

void PendingCoroutine::finish(std::exception_ptr failure) noexcept {
  Callbacks callbacks;
  const bool settled = settle_with([] {}, std::move(failure), callbacks);
  MINIRAY_CHECK(settled);
  std::exception_ptr thrown;
  try {
    run(callbacks);
  } catch (...) {
    thrown = std::current_exception();
  }
  const std::scoped_lock lock(inside_->mutex);
  inside_->thrown = thrown;
  inside_->changed.notify_all();
}

bool PendingCoroutine::wait(std::optional<double> timeout_s) {
  const Deadline deadline = Deadline::in_seconds(timeout_s);
  while (!done()) {
    std::unique_lock lock(inside_->mutex);
    const std::shared_ptr<Pending> awaited = inside_->awaited;
    const std::function<void()> resume_early = inside_->resume_early;
    if (awaited && !awaited->done()) {
      lock.unlock();
      (void)awaited->wait(deadline.seconds_left());
    } else if (awaited && resume_early) {
      lock.unlock();
      resume_early();
    } else if (!wait_for_another_thread(inside_->changed, lock, deadline,
                                        [&] { return done() || inside_->awaited != awaited; })) {
      return done();
    }
    if (deadline.passed()) return done();
  }
  return true;
}

void PendingCoroutine::look() {
  std::shared_ptr<Pending> awaited;
  std::function<void()> resume_early;
  {
    const std::scoped_lock lock(inside_->mutex);
    awaited = inside_->awaited;
    resume_early = inside_->resume_early;
  }
  if (awaited && !awaited->done()) awaited->look();
  if (awaited && awaited->done() && resume_early) resume_early();
}

void PendingCoroutine::cancel() {
  std::shared_ptr<Pending> awaited;
  {
    const std::scoped_lock lock(inside_->mutex);
    awaited = inside_->awaited;
  }
  if (!awaited) throw UsageError("this coroutine cannot be cancelled: it does not wait for a call or a task now");
  if (!awaited->done()) awaited->cancel();
}

std::string PendingCoroutine::describe_wait() const {
  const std::scoped_lock lock(inside_->mutex);
  return inside_->awaited ? inside_->awaited->describe_wait() : "the coroutine has not returned";
}

void PendingCoroutine::add_leaves(Sources& leaves) {
  std::shared_ptr<Pending> awaited;
  {
    const std::scoped_lock lock(inside_->mutex);
    awaited = inside_->awaited;
  }
  if (awaited && !awaited->done()) awaited->add_leaves(leaves);
}

}  // namespace miniray
