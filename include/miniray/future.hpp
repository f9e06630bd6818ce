// What the futures of calls (calls.hpp) and of tasks (pool.hpp) have in common.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
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
#include "miniray/value.hpp"

namespace miniray {

using Callbacks = std::vector<std::function<void()>>;
/// Runs each of them, whatever the others throw, and then throws the first exception.
void run(const Callbacks& callbacks);

/// The inside of a future, which its copies share. It is settled once: with a value, or with a failure.
class PendingResult {
 public:
  explicit PendingResult(std::string function_name) : function(std::move(function_name)) {}
  PendingResult(const PendingResult&) = delete;
  PendingResult& operator=(const PendingResult&) = delete;
  virtual ~PendingResult() = default;

  /// Waits until it is done. Returns false on time-out.
  virtual bool wait(std::optional<double> timeout_s) = 0;
  /// Learns what can be learned without waiting.
  virtual void look() = 0;
  /// Takes back what is not done, and settles it with Cancelled.
  virtual void cancel() = 0;
  /// For the text of a TimeoutError: "worker 12 has not answered the call of square".
  [[nodiscard]] virtual std::string describe_wait() const = 0;

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// The value. Throws the failure, if it has failed. Only once it is done.
  [[nodiscard]] Value& outcome();
  /// Calls `callback` when it is done; at once if it is.
  void notify(std::function<void()> callback);
  const std::string function;

 protected:
  /// Makes it done. False if it was done already. The caller has to run the callbacks, once it holds no lock.
  [[nodiscard]] bool settle(Value value, std::exception_ptr failure, Callbacks& callbacks);

 private:
  std::mutex mutex_;
  std::atomic<bool> done_ = false;
  Value value_;
  std::exception_ptr failure_;
  Callbacks callbacks_;  // until it is done
};

/// What a future has whatever the type of its result.
class FutureBase {
 public:
  explicit FutureBase(std::shared_ptr<PendingResult> pending) : pending_(std::move(pending)) {}

  /// Waits until it is done. Returns false on time-out; get() tells whether it has failed.
  bool wait(std::optional<double> timeout_s = {}) const { return pending_->done() || pending_->wait(timeout_s); }
  /// Whether it is done. It takes what has arrived, and waits for nothing but the replacement of a dead worker.
  [[nodiscard]] bool ready() const;
  /// Takes the call or the task back, and returns true: get() then throws Cancelled. Returns false if it is done.
  bool cancel() const;

 protected:
  [[nodiscard]] Value& outcome(std::optional<double> timeout_s) const;
  [[nodiscard]] const std::shared_ptr<PendingResult>& pending() const { return pending_; }

 private:
  std::shared_ptr<PendingResult> pending_;
};

[[noreturn]] void wrong_result(const std::string& function, const std::string& wanted, const std::exception& why);
/// Converts what a function returned to what its caller asked for. Throws ValueError if it is something else.
template <class Result>
[[nodiscard]] Result result_as(const std::string& function, const Value& value) {
  try {
    return convert<Result>(value);
  } catch (const std::exception& error) {
    wrong_result(function, Convert<Result>::name(), error);
  }
}
/// The same for each of several values.
template <class Result>
[[nodiscard]] std::vector<Result> results_as(const std::string& function, List values) {
  if constexpr (std::is_same_v<Result, Value>) {
    return values;
  } else {
    std::vector<Result> results;
    results.reserve(values.size());
    for (const Value& value : values) results.push_back(result_as<Result>(function, value));
    return results;
  }
}

/// A result that may still be on its way. Copies are the same future.
template <class Result, class Base>
class FutureOf : public Base {
 public:
  using Base::Base;

  /// Waits for the result and returns it; may be called repeatedly. Throws TimeoutError on time-out, and then nothing
  /// is lost; CallError if the function threw; Cancelled; WorkerDied, WorkerError and EndOfStream if the worker ended
  /// without a reply; for tasks also TaskTimeout and PoolBroken.
  Result get(std::optional<double> timeout_s = {}) const {
    static_assert(!std::is_same_v<Result, std::string_view>, "ask for a std::string: a view would refer to nothing");
    const Value& value = this->outcome(timeout_s);
    if constexpr (!std::is_void_v<Result>) return result_as<Result>(this->pending()->function, value);
  }
  /// Calls `callback` once with this future: at once if it is done, otherwise in the call that notices. What the
  /// callback throws comes out of that call.
  void on_done(std::function<void(const FutureOf&)> callback) const {
    this->pending()->notify([future = *this, callback = std::move(callback)] { callback(future); });
  }
};

/// Makes a List of the items of a map.
template <class Item>
[[nodiscard]] List list_of(const std::vector<Item>& items) {
  List list;
  list.reserve(items.size());
  for (const auto& item : items) list.push_back(to_value<Item>(item));
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
