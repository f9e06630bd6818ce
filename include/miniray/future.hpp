// Futures: those of calls (calls.hpp), those of tasks (pool.hpp), and those that are made of other futures.
//
//   auto future = pool.submit(square, 3.0);                        // a TaskFuture<double>
//   auto root = future.then([](double x) { return std::sqrt(x); });  // a Future<double>
//   auto both = miniray::when_all(future, root);                   // a Future<std::tuple<double, double>>
//   double nine = future.get(500ms);
//   double three = co_await root;                                  // in a coroutine: coroutine.hpp
//   std::future<double> standard = root;                           // needs std_future.hpp
//
// There is no hidden thread. A result is noticed in a call of some thread that waits for it, asks for it with ready(),
// or waits for another future of the same pool or of the same worker. Whatever was attached to a future by on_done(),
// then() or co_await runs in that call, in that thread; or at once, in the call that attaches it, if the future is
// done.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/convert.hpp"
#include "miniray/error.hpp"
#include "miniray/export.hpp"
#include "miniray/seconds.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

using Callbacks = std::vector<std::function<void()>>;
/// Runs each of them, whatever the others throw, and then throws the first exception. Futures that become done because
/// of a callback have their callbacks run after it, not inside it, so that a long chain of futures needs no deep stack.
void run(const Callbacks& callbacks);

/// The state of a future, which its copies share. It is settled once: with a value, or with a failure. Any thread may
/// call the functions that are not virtual. Only threads that may use the future may call the others.
class Pending : public std::enable_shared_from_this<Pending> {
 public:
  explicit Pending(std::string function_name) : function(std::move(function_name)) {}
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual ~Pending() = default;

  /// Waits until it is done. Returns false on time-out.
  virtual bool wait(std::optional<double> timeout_s) = 0;
  /// Takes the replies that have arrived, without waiting.
  virtual void look() = 0;
  /// Cancels the calls and tasks behind this that are not done. They are settled with Cancelled.
  virtual void cancel() = 0;
  /// Returns the reason for a TimeoutError: "worker 12 has not answered the call of square".
  [[nodiscard]] virtual std::string describe_wait() const = 0;

  /// If this is made of other futures: appends those that are not done, and returns true. Calls and tasks return false.
  virtual bool add_sources(std::vector<std::shared_ptr<Pending>>& /*sources*/) const { return false; }
  /// If this is made of other futures: does what can be done without waiting, and then returns the future that has to
  /// be done first. Returns null if there is no such future: wait_here() then waits for what this needs.
  virtual std::shared_ptr<Pending> next_source() { return nullptr; }
  /// Waits for what this needs, but for none of the futures that next_source() returns. It may return early.
  virtual void wait_here(std::optional<double> timeout_s) { (void)wait(timeout_s); }
  /// Throws UsageError if this cannot be cancelled now.
  virtual void require_cancellable() const {}
  /// Calls and tasks of one group can be waited for together, by wait_any() of each of them.
  [[nodiscard]] virtual const void* group() const { return this; }
  /// Waits until one of the group is done, or the time is over.
  virtual void wait_any(std::span<const std::shared_ptr<Pending>> group, std::optional<double> timeout_s);
  /// Returns the std::optional that has the value of a Future once it is done; null for calls and tasks.
  [[nodiscard]] virtual void* slot() { return nullptr; }

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// Throws the failure, if it has failed. It must be done.
  void check() const;
  /// Calls `callback` when it is done; at once if it is done already. If its Pool or Caller is destroyed first, the
  /// callback is destroyed and not called.
  void notify(std::function<void()> callback);
  const std::string function;

 protected:
  /// Calls `store` and makes it done. Returns false if it was done already. The caller must run the callbacks when it
  /// holds no lock.
  template <class Store>
  [[nodiscard]] bool settle_with(Store store, std::exception_ptr failure, Callbacks& callbacks) {
    const std::scoped_lock lock(mutex_);
    if (done()) return false;
    store();
    failure_ = std::move(failure);
    callbacks = std::exchange(callbacks_, {});
    done_.store(true, std::memory_order_release);
    return true;
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> done_ = false;
  std::exception_ptr failure_;
  Callbacks callbacks_;  // until it is done
};

/// The state of a future of a call or of a task: its result is a Value.
class PendingResult : public Pending {
 public:
  using Pending::Pending;
  /// Returns the value. Throws the failure, if it has failed. It must be done.
  [[nodiscard]] Value& outcome();

 protected:
  [[nodiscard]] bool settle(Value value, std::exception_ptr failure, Callbacks& callbacks);

 private:
  Value value_;
};

/// The part of a future that does not depend on the type of its result. A future that was default-constructed or moved
/// from refers to nothing: it can be assigned to and destroyed, and every other call but valid() throws UsageError.
class FutureBase {
 public:
  FutureBase() = default;
  explicit FutureBase(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}

  /// Returns false if it was default-constructed or moved from.
  [[nodiscard]] bool valid() const { return pending_ != nullptr; }
  /// Waits until it is done. Returns false on time-out; get() tells whether it has failed.
  bool wait(Timeout timeout_s = {}) const { return pending()->done() || pending()->wait(timeout_s); }
  /// Returns whether it is done. It takes replies that have arrived, and waits only for the replacement of a dead
  /// worker.
  [[nodiscard]] bool ready() const;
  /// Cancels the call or the task, and returns true: get() then throws Cancelled. Returns false if it is done. A future
  /// that was made of others cancels those.
  bool cancel() const;
  /// One rung lower: returns the state that copies of this future share. Throws UsageError if it refers to nothing.
  [[nodiscard]] const std::shared_ptr<Pending>& pending() const {
    if (!pending_) throw_refers_to_nothing();
    return pending_;
  }

 protected:
  /// Waits, and returns the state once it has a value. Throws TimeoutError, and the failure.
  [[nodiscard]] Pending& settled(Timeout timeout_s) const;

 private:
  [[noreturn]] static void throw_refers_to_nothing();
  std::shared_ptr<Pending> pending_;
};

[[noreturn]] void wrong_result(const std::string& function, const std::string& wanted, const std::exception& why);
/// Converts the value that a function returned to the type that its caller asked for. Throws ValueError if it does not
/// convert.
template <class Result>
[[nodiscard]] Result result_as(const std::string& function, const Value& value) {
  static_assert(!detail::refers_to_value<Result>,
                "a result owns its content, because a view would refer to nothing: ask for std::string or std::vector");
  try {
    return convert<Result>(value);
  } catch (const std::exception& error) {
    wrong_result(function, Convert<Result>::name(), error);
  }
}
/// What a map returns: a std::vector<Result>. That of a map whose results are Values can be used without a name, as in
/// `pool.map("f", items)[0].array<double>()`: its elements are then moved out of it.
template <class Result>
using Results = std::conditional_t<std::is_same_v<Result, Value>, TakenOut<List>, std::vector<Result>>;
/// The same as result_as() for each of several values.
template <class Result>
[[nodiscard]] Results<Result> results_as(const std::string& function,
                                         List values) {  // NOLINT(performance-unnecessary-value-param): returned
  if constexpr (std::is_same_v<Result, Value>) {
    return values;
  } else {
    std::vector<Result> results;
    results.reserve(values.size());
    for (const Value& value : values) results.push_back(result_as<Result>(function, value));
    return results;
  }
}

/// A future whose value comes from a worker.
class RemoteFutureBase : public FutureBase {
 public:
  RemoteFutureBase() = default;
  explicit RemoteFutureBase(std::shared_ptr<PendingResult> pending) : FutureBase(std::move(pending)) {}

 protected:
  template <class Result>
  [[nodiscard]] Result result(Timeout timeout_s) const {
    Pending& done = settled(timeout_s);
    if constexpr (!std::is_void_v<Result>)
      return result_as<Result>(done.function, static_cast<PendingResult&>(done).outcome());
  }
};

namespace detail {

// How a Future keeps its result.
template <class Result>
using Stored = std::conditional_t<std::is_void_v<Result>, bool, Result>;

}  // namespace detail

/// A future whose value is made in this process: of other futures (then, when_all, when_any), or by a coroutine.
class LocalFutureBase : public FutureBase {
 public:
  LocalFutureBase() = default;
  /// For the library's own files: `pending` has a slot() for the result.
  explicit LocalFutureBase(std::shared_ptr<Pending> pending) : FutureBase(std::move(pending)) {}

 protected:
  template <class Result>
  [[nodiscard]] Result result(Timeout timeout_s) const {
    [[maybe_unused]] Pending& done = settled(timeout_s);
    if constexpr (!std::is_void_v<Result>) {
      static_assert(std::is_copy_constructible_v<Result>, "copies of a future share its result: it has to be copyable");
      return **static_cast<std::optional<detail::Stored<Result>>*>(done.slot());
    }
  }
};

template <class Result, class Base>
class FutureOf;

/// A future that is made in this process. continuation.hpp has the functions that make one.
template <class Result>
using Future = FutureOf<Result, LocalFutureBase>;

namespace detail {

template <class T>
struct IsFuture : std::false_type {};
template <class Result, class Base>
struct IsFuture<FutureOf<Result, Base>> : std::true_type {};

// What a function returns that is called with the result of a future.
template <class Function, class Result>
struct Continued : std::invoke_result<Function&, Result> {};
template <class Function>
struct Continued<Function, void> : std::invoke_result<Function&> {};

// The result of what a continuation returns: that of a future, if it returns one.
template <class T>
struct Unwrapped {
  using type = T;
};
template <class Result, class Base>
struct Unwrapped<FutureOf<Result, Base>> {
  using type = Result;
};

/// Calls `action` once: when `source` is done; or, with dropped = true, when the callback is destroyed because the Pool
/// or the Caller of the source is being destroyed. Returns a function that calls the action now if it was not called
/// yet.
std::function<void()> attach(Pending& source, std::function<void(bool dropped)> action);

}  // namespace detail

/// A result that may not have arrived yet. Copies are the same future, and share the result.
template <class Result, class Base>
class FutureOf : public Base {
 public:
  using Base::Base;

  /// Waits for the result and returns it; may be called repeatedly. Throws TimeoutError on time-out, and then nothing
  /// is lost; CallError if the function threw; Cancelled; WorkerDied, WorkerError and EndOfStream if the worker ended
  /// without a reply; for tasks also TaskTimeout, which is a TimeoutError, and PoolBroken.
  Result get(Timeout timeout_s = {}) const {
    static_assert(!std::is_same_v<Result, std::string_view>, "ask for a std::string: a view would refer to nothing");
    return this->template result<Result>(timeout_s);
  }
  /// Calls `callback` once with this future: at once if it is done, otherwise in the call that notices. What the
  /// callback throws comes out of that call. It is not called if the Pool or the Caller is destroyed first.
  void on_done(std::function<void(const FutureOf&)> callback) const {
    this->pending()->notify([future = *this, callback = std::move(callback)] { callback(future); });
  }
  /// Returns the future of function(result); of function(), if the result is void. The function is called once, in the
  /// call that notices that this future is done, at once if it is, or in the call that waits for the returned future.
  /// If this future fails, the function is not called, and the returned future has the same failure; if the function
  /// throws, it has that exception. If the function returns a future, the returned one has that future's result. If the
  /// Pool or the Caller is destroyed first, the returned future has the failure Cancelled.
  template <class Function>
  auto then(Function function) const -> Future<
      typename detail::Unwrapped<std::remove_cvref_t<typename detail::Continued<Function, Result>::type>>::type>;

  // For co_await, in coroutines of any type. See coroutine.hpp for those that return a Future.
  [[nodiscard]] bool await_ready() const { return this->ready(); }
  /// Resumes the coroutine in the call that notices the result, or, with Cancelled, in the destructor of the Pool or
  /// the Caller that made the future.
  template <class CoroutineHandle>
  void await_suspend(CoroutineHandle handle) const {
    const std::shared_ptr<Pending> kept = this->pending();
    (void)detail::attach(*kept, [handle](bool /*dropped*/) { handle.resume(); });
  }
  Result await_resume() const { return get(); }

  /// Converts to a std::future of the same result, if std_future.hpp is included.
  template <class Standard>
    requires(!detail::IsFuture<Standard>::value &&
             requires(Standard& standard) {
               standard.valid();
               standard.wait();
               standard.get();
             })
  operator Standard() const {
    constexpr bool convertible =
        requires(const FutureOf& future, Standard* standard) { convert_to_standard(future, standard); };
    static_assert(convertible,
                  "the conversion to std::future is in a header of its own, because <future> takes long to compile: "
                  "#include <miniray/std_future.hpp>. The std::future has to have the same result");
    if constexpr (convertible) return convert_to_standard(*this, static_cast<Standard*>(nullptr));
  }
};

/// The type of a range's items.
template <class Range>
using ItemOf = std::iter_value_t<decltype(std::begin(std::declval<Range&>()))>;

/// Makes a List of the items of a map: of a container, a std::span, a view, or any other range.
template <class Range>
[[nodiscard]] List list_of(Range&& items) {
  List list;
  if constexpr (requires { static_cast<std::size_t>(items.size()); })
    list.reserve(static_cast<std::size_t>(items.size()));
  for (auto&& item : items) list.push_back(to_value<ItemOf<Range>>(item));
  return list;
}

/// Pointers to the futures without their types.
template <class Base, class Result>
[[nodiscard]] std::vector<const Base*> bases_of(const std::vector<FutureOf<Result, Base>>& futures) {
  std::vector<const Base*> bases;
  bases.reserve(futures.size());
  for (const Base& future : futures) bases.push_back(&future);
  return bases;
}

}  // namespace miniray
