// Coroutines that wait for calls and tasks:
//
//   miniray::Future<double> norm(miniray::Pool& pool, double x, double y) {
//     auto a = pool.submit(square, x), b = pool.submit(square, y);   // both are under way
//     co_return std::sqrt(co_await a + co_await b);
//   }
//   double five = norm(pool, 3, 4).get();
//
// A function that returns a Future and uses co_await or co_return is such a coroutine. It runs at once, in the thread
// that calls it, until it waits for a future that is not done. It goes on in the call that notices that this future is
// done, in that call's thread: there is no hidden thread, so some thread has to wait for its future, or for another one
// of the same pool or worker. What it throws is the failure of its future. It goes on even if nobody has kept the
// future. If the Pool or the Caller is destroyed first, the coroutine goes on in that destructor, and co_await throws
// Cancelled, so that its variables are destroyed. Its parameters by reference must live until it has ended.
//
// GCC 12 destroys a braced temporary twice if it stands in the expression of a co_await. So name it first:
//
//   const miniray::PoolView patient = pool.with({.retries = 2});
//   co_await patient.submit(square, x);
//
// The futures of calls and tasks can also be awaited in coroutines of other types.
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "miniray/continuation.hpp"
#include "miniray/export.hpp"
#include "miniray/future.hpp"

namespace MINIRAY_API miniray {

/// The inside of the Future of a coroutine.
class PendingCoroutine : public Pending {
 public:
  PendingCoroutine();
  ~PendingCoroutine() override;

  bool wait(std::optional<double> timeout_s) override;
  void look() override;
  /// Cancels what the coroutine waits for: its co_await throws Cancelled, which it may catch. Throws UsageError if it
  /// waits for no call or task.
  void cancel() override;
  [[nodiscard]] std::string describe_wait() const override;
  bool add_sources(std::vector<std::shared_ptr<Pending>>& sources) const override;
  std::shared_ptr<Pending> next_source() override;
  void wait_here(std::optional<double> timeout_s) override;
  void require_cancellable() const override;

  /// Has the coroutine resumed when `source` is done.
  void await(const std::shared_ptr<Pending>& source, std::function<void()> resume);
  /// The coroutine has ended.
  void finish(std::exception_ptr failure) noexcept;

 private:
  struct Inside;
  const std::unique_ptr<Inside> inside_;
};

namespace detail {

template <class Result>
class PendingCoroutineOf : public PendingCoroutine {
 public:
  [[nodiscard]] void* slot() override { return &value; }
  std::optional<Stored<Result>> value;
};

// Waits for a future in a coroutine whose inside has to know what it waits for.
template <class Result, class Base>
struct Awaiter {
  FutureOf<Result, Base> future;
  PendingCoroutine* coroutine;
  [[nodiscard]] bool await_ready() const { return future.ready(); }
  void await_suspend(std::coroutine_handle<> handle) const {
    // From here on another thread may resume the coroutine, which destroys this object.
    const std::shared_ptr<Pending> source = future.pending();
    const auto kept = std::static_pointer_cast<PendingCoroutine>(coroutine->shared_from_this());
    kept->await(source, [handle] { handle.resume(); });
  }
  Result await_resume() const { return future.get(); }
};

template <class Result>
struct CoroutinePromiseBase {
  std::shared_ptr<PendingCoroutineOf<Result>> pending = std::make_shared<PendingCoroutineOf<Result>>();
  std::exception_ptr failure;

  Future<Result> get_return_object() { return Future<Result>(pending); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_never final_suspend() noexcept {
    pending->finish(failure);
    return {};
  }
  void unhandled_exception() { failure = std::current_exception(); }
  template <class Awaited, class Base>
  Awaiter<Awaited, Base> await_transform(FutureOf<Awaited, Base> future) {
    return {std::move(future), pending.get()};
  }
  template <class Awaitable>
  Awaitable&& await_transform(Awaitable&& awaitable) {
    return std::forward<Awaitable>(awaitable);
  }
};
template <class Result>
struct CoroutinePromise : CoroutinePromiseBase<Result> {
  template <class Returned>
  void return_value(Returned&& returned) {
    this->pending->value.emplace(std::forward<Returned>(returned));
  }
};
template <>
struct CoroutinePromise<void> : CoroutinePromiseBase<void> {
  void return_void() {}
};

}  // namespace detail
}  // namespace miniray

/// Makes a function that returns a miniray::Future a coroutine.
template <class Result, class... Parameters>
struct std::coroutine_traits<miniray::Future<Result>, Parameters...> {
  using promise_type = miniray::detail::CoroutinePromise<Result>;
};
