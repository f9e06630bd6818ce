#include "miniray/future.hpp"

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "calls/due_callbacks.hpp"
#include "miniray/typed_function.hpp"

namespace miniray {

void Pending::check() const {
  MINIRAY_CHECK(done(), function);
  if (failure_) std::rethrow_exception(failure_);
}

Value& PendingResult::outcome() {
  check();
  return value_;
}

void Pending::wait_any(std::span<const std::shared_ptr<Pending>> /*group*/, std::optional<double> timeout_s) {
  (void)wait(timeout_s);
}

void Pending::notify(std::function<void()> callback) {
  {
    const std::scoped_lock lock(mutex_);
    if (!done()) return callbacks_.push_back(std::move(callback));
  }
  callback();
}

bool PendingResult::settle(Value value, std::exception_ptr failure, Callbacks& callbacks) {
  return settle_with([&] { value_ = std::move(value); }, std::move(failure), callbacks);
}

namespace {

struct Due {
  Callbacks callbacks;
  bool dropped = false;
};
// Those of the innermost run() of this thread. Null if the thread is not in run().
thread_local std::vector<Due>* due_in_this_run = nullptr;

void run_each(const Callbacks& callbacks, std::exception_ptr& thrown) {
  for (const auto& callback : callbacks) {
    try {
      callback();
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  }
}

// Does `first`, and then everything that becomes due because of it.
template <class First>
void run_with_what_follows(First first) {
  std::vector<Due> due;  // takes no memory unless something becomes due
  std::vector<Due>* const outer = std::exchange(due_in_this_run, &due);
  std::exception_ptr thrown;
  first(thrown);
  for (std::size_t i = 0; i < due.size(); ++i) {
    const Due next = std::move(due[i]);  // running or destroying it may add more
    if (!next.dropped) run_each(next.callbacks, thrown);
  }
  due_in_this_run = outer;
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace

void run(const Callbacks& callbacks) {
  if (callbacks.empty()) return;
  run_with_what_follows([&](std::exception_ptr& thrown) { run_each(callbacks, thrown); });
}

void run_soon(Callbacks callbacks) {
  if (due_in_this_run != nullptr && !callbacks.empty())
    due_in_this_run->push_back({std::move(callbacks)});
  else
    run(callbacks);
}

void drop_soon(Callbacks callbacks) {
  if (callbacks.empty()) return;
  if (due_in_this_run != nullptr)
    due_in_this_run->push_back({std::move(callbacks), true});
  else
    run_with_what_follows([&](std::exception_ptr& /*thrown*/) { callbacks.clear(); });
}

void FutureBase::throw_refers_to_nothing() {
  throw UsageError(
      "this future refers to no call or task: it was default-constructed, or moved from. Assign it the future that "
      "call_async() or submit() returned");
}

bool FutureBase::ready() const {
  if (!pending()->done()) pending()->look();
  return pending()->done();
}

bool FutureBase::cancel() const {
  if (ready()) return false;
  pending()->cancel();
  return true;
}

Pending& FutureBase::settled(Timeout timeout_s) const {
  if (!wait(timeout_s))
    throw TimeoutError(pending()->describe_wait() + " after " + number_text(*timeout_s) +
                       " s; it goes on, and its result is not lost");
  pending()->check();
  return *pending();
}

void wrong_result(const std::string& function, const std::string& wanted, const std::exception& why) {
  const std::string asked = std::string(detail::spoken_name(function)) + " was asked for " + wanted + ", and ";
  if (const auto* mismatch = dynamic_cast<const Mismatch*>(&why))
    throw ValueError(asked + (mismatch->place().empty() ? "" : mismatch->place() + " of ") + "its result " +
                     mismatch->found());
  throw ValueError(asked + "its result cannot be converted: " + why.what());
}

namespace detail {
namespace {

// An action that was attached to a future. It is called once.
struct Attached {
  explicit Attached(std::function<void(bool)> what) : action(std::move(what)) {}
  void call(bool dropped) {
    if (called.exchange(true)) return;
    const std::function<void(bool)> once = std::move(action);  // the action may own this object
    once(dropped);
  }
  std::function<void(bool)> action;
  std::atomic<bool> called = false;
};

// Calls the action when the callback is destroyed without having been called: its Pool or Caller is being destroyed.
struct CallbackGuard {
  explicit CallbackGuard(std::shared_ptr<Attached> what) : attached(std::move(what)) {}
  CallbackGuard(const CallbackGuard&) = delete;
  CallbackGuard& operator=(const CallbackGuard&) = delete;
  ~CallbackGuard() {
    try {
      attached->call(true);
    } catch (...) {  // a destructor must not throw, and no caller is left
    }
  }
  const std::shared_ptr<Attached> attached;
};

}  // namespace

std::function<void()> attach(Pending& source, std::function<void(bool dropped)> action) {
  const auto attached = std::make_shared<Attached>(std::move(action));
  source.notify([guard = std::make_shared<CallbackGuard>(attached)] { guard->attached->call(false); });
  return [attached] { attached->call(false); };
}

}  // namespace detail
}  // namespace miniray
