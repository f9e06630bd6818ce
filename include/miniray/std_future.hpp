// Converts the futures of MiniRay to std::future:
//
//   std::future<double> standard = pool.submit(square, 3.0);
//   double nine = standard.get();
//
// There is no hidden thread, so the std::future is a deferred one: get() and wait() wait for the call or the task in
// the thread that calls them, and wait_for() and wait_until() return std::future_status::deferred. get() throws what
// get() of the original throws. The original, and its copies, can still be used.
#pragma once

#include <future>

#include "miniray/export.hpp"
#include "miniray/future.hpp"

namespace MINIRAY_API miniray {

/// Returns a std::future of the same result. Throws UsageError if the future refers to nothing.
template <class Result, class Base>
[[nodiscard]] std::future<Result> to_std_future(const FutureOf<Result, Base>& future) {
  (void)future.pending();
  return std::async(std::launch::deferred, [future] { return future.get(); });
}

template <class Result, class Base>
[[nodiscard]] std::future<Result> convert_to_standard(const FutureOf<Result, Base>& future,
                                                      std::future<Result>* /*which*/) {
  return to_std_future(future);
}
template <class Result, class Base>
[[nodiscard]] std::shared_future<Result> convert_to_standard(const FutureOf<Result, Base>& future,
                                                             std::shared_future<Result>* /*which*/) {
  return to_std_future(future).share();
}

}  // namespace miniray
