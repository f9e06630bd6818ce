#include "miniray/continuation.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <unordered_set>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "calls/due_callbacks.hpp"
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

// What has to be done before some futures can be. The functions below use this, and a path, in place of recursion:
// futures may be chained without limit, and the stack has one.
struct Needed {
  Sources leaves;  // calls and tasks
  Sources made;    // of others; each stands before those that it is made of
};
Needed needed_for(Sources futures) {
  std::ranges::reverse(futures);  // the last one is taken first
  Needed needed;
  std::unordered_set<const Pending*> seen;
  while (!futures.empty()) {
    const std::shared_ptr<Pending> next = std::move(futures.back());
    futures.pop_back();
    if (next->done() || !seen.insert(next.get()).second) continue;
    const auto first_new = static_cast<std::ptrdiff_t>(futures.size());
    (next->add_sources(futures) ? needed.made : needed.leaves).push_back(next);
    std::reverse(futures.begin() + first_new, futures.end());
  }
  return needed;
}

bool wait_along(const std::shared_ptr<Pending>& future, std::optional<double> timeout_s) {
  const Deadline deadline = Deadline::in_seconds(timeout_s);
  Sources path = {future};  // each has to be done before the one in front of it can be
  while (true) {
    std::shared_ptr<Pending> next = path.back()->done() ? nullptr : path.back()->next_source();
    if (future->done()) return true;
    if (deadline.passed()) return false;
    if (next)
      path.push_back(std::move(next));
    else if (path.back()->done())
      path.pop_back();
    else
      path.back()->wait_here(deadline.seconds_left());
  }
}

void look_along(const std::shared_ptr<Pending>& future) {
  const Needed needed = needed_for({future});
  for (const std::shared_ptr<Pending>& leaf : needed.leaves)
    if (!leaf->done()) leaf->look();
  for (auto made = needed.made.rbegin(); made != needed.made.rend(); ++made)
    if (!(*made)->done()) (void)(*made)->next_source();
}

void cancel_along(const std::shared_ptr<Pending>& future) {
  const Needed needed = needed_for({future});
  for (const std::shared_ptr<Pending>& made : needed.made) made->require_cancellable();
  for (const std::shared_ptr<Pending>& leaf : needed.leaves)
    if (!leaf->done()) leaf->cancel();
  for (auto made = needed.made.rbegin(); made != needed.made.rend(); ++made)
    if (!(*made)->done()) (void)(*made)->next_source();
}

// Returns the first of what has to be done before `future` can be; null if that is nothing.
std::shared_ptr<Pending> first_needed(const Pending& future) {
  std::shared_ptr<Pending> found;
  Sources sources;
  const Pending* at = &future;
  while (at->add_sources(sources) && !sources.empty()) {
    found = sources.front();
    at = found.get();
    sources.clear();
  }
  return found;
}

// Waits until one of them may be done, or the deadline has passed.
void wait_for_one(const Sources& sources, const Deadline& deadline) {
  std::map<const void*, Sources> groups;
  for (std::shared_ptr<Pending>& leaf : needed_for(sources).leaves) groups[leaf->group()].push_back(std::move(leaf));
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
    (void)detail::attach(
        *source, [self](bool dropped) { self->advance(dropped ? NoticedBy::dropped_callback : NoticedBy::callback); });
  if (all.empty()) advance(NoticedBy::callback);
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

// If the Pool or the Caller of the sources is being destroyed, callbacks are dropped, but threads that wait for this
// get its failure.
void PendingLocal::advance(NoticedBy how) {
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
  Sources done_with;
  if (!further) {
    drop_inputs();
    const bool settled = settle_with([] {}, failure, callbacks);
    MINIRAY_CHECK(settled, function);
  }
  {
    const std::scoped_lock lock(inside_->mutex);
    done_with.swap(inside_->sources);
    if (further) {
      inside_->sources = {further};
      inside_->needs = Needs::all;
    }
    inside_->computing = false;
    inside_->changed.notify_all();
  }
  if (further)
    listen();
  else if (how == NoticedBy::waiting)
    run(callbacks);
  else if (how == NoticedBy::callback)
    run_soon(std::move(callbacks));
  else
    drop_soon(std::move(callbacks));
}

bool PendingLocal::wait(std::optional<double> timeout_s) { return wait_along(shared_from_this(), timeout_s); }
void PendingLocal::look() { look_along(shared_from_this()); }
void PendingLocal::cancel() { cancel_along(shared_from_this()); }

std::shared_ptr<Pending> PendingLocal::next_source() {
  advance(NoticedBy::waiting);
  const std::scoped_lock lock(inside_->mutex);
  if (inside_->computing || (inside_->needs == Needs::any && inside_->sources.size() > 1)) return nullptr;
  const auto first = std::ranges::find_if(inside_->sources, [](const auto& source) { return !source->done(); });
  return first == inside_->sources.end() ? nullptr : *first;
}

void PendingLocal::wait_here(std::optional<double> timeout_s) {
  const Deadline deadline = Deadline::in_seconds(timeout_s);
  std::unique_lock lock(inside_->mutex);
  if (inside_->computing) {
    (void)wait_for_another_thread(inside_->changed, lock, deadline, [this] { return !inside_->computing; });
    return;
  }
  const Sources all = inside_->sources;
  const bool needs_one = inside_->needs == Needs::any;
  lock.unlock();
  if (needs_one && std::ranges::none_of(all, [](const auto& source) { return source->done(); }))
    wait_for_one(all, deadline);
}

std::string PendingLocal::describe_wait() const {
  const std::shared_ptr<Pending> needed = first_needed(*this);
  return needed ? needed->describe_wait() : "the continuation of " + function + " has not returned";
}

bool PendingLocal::add_sources(Sources& sources) const {
  const std::scoped_lock lock(inside_->mutex);
  std::ranges::copy_if(inside_->sources, std::back_inserter(sources),
                       [](const auto& source) { return !source->done(); });
  return true;
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
    run_soon(std::move(callbacks));
  } catch (...) {
    thrown = std::current_exception();
  }
  const std::scoped_lock lock(inside_->mutex);
  inside_->thrown = thrown;
  inside_->changed.notify_all();
}

bool PendingCoroutine::wait(std::optional<double> timeout_s) { return wait_along(shared_from_this(), timeout_s); }
void PendingCoroutine::look() { look_along(shared_from_this()); }
void PendingCoroutine::cancel() { cancel_along(shared_from_this()); }

std::shared_ptr<Pending> PendingCoroutine::next_source() {
  std::shared_ptr<Pending> awaited;
  std::function<void()> resume_early;
  {
    const std::scoped_lock lock(inside_->mutex);
    awaited = inside_->awaited;
    resume_early = inside_->resume_early;
  }
  if (awaited && !awaited->done()) return awaited;
  if (awaited && resume_early) resume_early();
  return nullptr;
}

// Returns when another thread has resumed the coroutine, or when there is something for next_source() to do.
void PendingCoroutine::wait_here(std::optional<double> timeout_s) {
  const Deadline deadline = Deadline::in_seconds(timeout_s);
  std::unique_lock lock(inside_->mutex);
  const std::shared_ptr<Pending> awaited = inside_->awaited;
  if (awaited && (inside_->resume_early || !awaited->done())) return;
  (void)wait_for_another_thread(inside_->changed, lock, deadline,
                                [&] { return done() || inside_->awaited != awaited; });
}

void PendingCoroutine::require_cancellable() const {
  const std::scoped_lock lock(inside_->mutex);
  if (!inside_->awaited)
    throw UsageError("this coroutine cannot be cancelled: it does not wait for a call or a task now");
}

std::string PendingCoroutine::describe_wait() const {
  const std::shared_ptr<Pending> needed = first_needed(*this);
  return needed ? needed->describe_wait() : "the coroutine has not returned";
}

bool PendingCoroutine::add_sources(Sources& sources) const {
  const std::scoped_lock lock(inside_->mutex);
  if (inside_->awaited && !inside_->awaited->done()) sources.push_back(inside_->awaited);
  return true;
}

}  // namespace miniray
