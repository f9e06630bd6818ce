// Calls functions of a worker from its coordinator:
//
//   miniray::registry().add("square", [](double x) { return x * x; });
//   miniray::Worker worker(miniray::serve_calls);
//   miniray::Caller caller(worker);
//   double nine = caller.call<double>("square", 3);
//   auto future = caller.call_async<double>("square", 4);   // many may be under way
//   double sixteen = future.get();
//
// Functions can also be called without a name, and then the compiler checks the arguments (typed_function.hpp):
//
//   double nine = caller.call([](double x) { return x * x; }, 3);
//
// Calls and messages share a worker: worker.send() and worker.recv() work beside calls. The worker may be a Python one;
// its functions are called "module.function", or by the name under which they were registered there. There is no thread
// behind a Caller: replies are received when you wait for one, ask for one, or call take_replies().
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "miniray/continuation.hpp"
#include "miniray/convert.hpp"
#include "miniray/error.hpp"
#include "miniray/export.hpp"
#include "miniray/future.hpp"
#include "miniray/handle.hpp"
#include "miniray/registry.hpp"
#include "miniray/seconds.hpp"
#include "miniray/typed_function.hpp"
#include "miniray/worker.hpp"

namespace MINIRAY_API miniray {

// --- In the worker ---------------------------------------------------------------------------------------------------
/// From now on, answers calls whenever the work function waits in handle.recv(). The functions must outlive the
/// handle.
void answer_calls(Handle& handle, Registry& functions = registry());
/// A work function that only answers calls, until the coordinator closes the conversation.
void serve_calls(Handle& handle);

// --- In the coordinator ----------------------------------------------------------------------------------------------
/// Thrown if the function that was called threw an exception. The worker continues. what() has the function, the
/// worker, the type, the message and the traceback.
class CallError : public Error {
 public:
  CallError(const std::string& function, std::string worker, std::string type, std::string message,
            std::string traceback);
  [[nodiscard]] const std::string& worker() const { return worker_; }
  [[nodiscard]] const std::string& type() const { return type_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] const std::string& traceback() const { return traceback_; }

 private:
  std::string worker_, type_, message_, traceback_;
};

/// Thrown if a call needed more memory than its memory_bytes (TaskOptions) allow.
class TaskOutOfMemory : public CallError {
 public:
  using CallError::CallError;
};

/// Thrown if the call was cancelled by cancel(), or its Caller was destroyed.
class Cancelled : public Error {
 public:
  using Error::Error;
};

/// The last argument of a call, for functions of Python: caller.call("train_step", batch, Keywords{{"lr", 0.1}}).
class Keywords {
 public:
  Keywords(std::initializer_list<std::pair<std::string, Value>> keywords) {
    for (const auto& [name, value] : keywords) map_.emplace_back(name, value);
  }
  [[nodiscard]] const Map& map() const { return map_; }

 private:
  Map map_;
};

/// The arguments of a call, and its keywords: a map, or null.
template <class... Arguments>
[[nodiscard]] std::pair<List, Value> pack_arguments(Arguments&&... arguments) {
  std::pair<List, Value> packed;
  packed.first.reserve(sizeof...(arguments));
  [[maybe_unused]] const auto add = [&]<class Argument>(Argument&& argument) {
    if constexpr (std::is_same_v<std::remove_cvref_t<Argument>, Keywords>)
      packed.second = argument.map();
    else if constexpr (std::is_convertible_v<Argument, Value>)
      packed.first.emplace_back(std::forward<Argument>(argument));
    else
      packed.first.push_back(to_value<std::remove_cvref_t<Argument>>(argument));
  };
  (add(std::forward<Arguments>(arguments)), ...);
  return packed;
}

class PendingCall;  // the inside of a future
class CallDesk;     // the inside of a Caller

/// A future of a call. One thread at a time may use a Caller and its futures.
class CallFutureBase : public RemoteFutureBase {
 public:
  CallFutureBase() = default;
  explicit CallFutureBase(std::shared_ptr<PendingCall> call);
};

template <class Result>
using CallFuture = FutureOf<Result, CallFutureBase>;

/// Makes calls on a worker. The Worker object may be moved meanwhile. When it is destroyed, calls under way fail, and
/// the Caller throws UsageError. A worker can have one Caller at a time; replies to the calls of an earlier one are
/// dropped.
class Caller {
 public:
  /// Throws UsageError if the worker has a Caller already. A Caller that was moved from does not count.
  explicit Caller(Worker& worker);
  Caller(Caller&&) noexcept;
  Caller& operator=(Caller&&) noexcept;
  /// Cancels calls under way: get() throws Cancelled, and on_done is not called.
  ~Caller();

  /// Calls the function, waits, and returns its result. "name.method" is a method of an object from create().
  /// Throws what CallFuture::get() throws.
  template <class Result = Value, class... Arguments>
  Result call(std::string_view function, Arguments&&... arguments) {
    auto [list, keywords] = pack_arguments(std::forward<Arguments>(arguments)...);
    return result_of<Result>(begin(function, std::move(list), std::move(keywords)));
  }
  /// The same for a function without a name (typed_function.hpp). The compiler checks the arguments, and the result has
  /// the type that the function returns. Throws UsageError if it is a function pointer that is not registered.
  template <RemoteFunction Function, class... Arguments>
  RemoteResult<Function> call(Function function, Arguments&&... arguments) {
    const std::string& name = detail::remote_name(function);
    return result_of<RemoteResult<Function>>(
        begin(name, detail::typed_arguments<Function>(std::forward<Arguments>(arguments)...), {}));
  }
  /// Sends the call and returns its future. Many calls may be under way.
  template <class Result = Value, class... Arguments>
  [[nodiscard]] CallFuture<Result> call_async(std::string_view function, Arguments&&... arguments) {
    auto [list, keywords] = pack_arguments(std::forward<Arguments>(arguments)...);
    return CallFuture<Result>(begin(function, std::move(list), std::move(keywords)));
  }
  template <RemoteFunction Function, class... Arguments>
  [[nodiscard]] CallFuture<RemoteResult<Function>> call_async(Function function, Arguments&&... arguments) {
    const std::string& name = detail::remote_name(function);
    return CallFuture<RemoteResult<Function>>(
        begin(name, detail::typed_arguments<Function>(std::forward<Arguments>(arguments)...), {}));
  }
  /// Calls the function with each item of a range, in this worker, and waits. The results are in the items' order. If
  /// items fail, throws the error of the first of them, after all have been called.
  template <class Result = Value, class Range>
  [[nodiscard]] Results<Result> map(std::string_view function, Range&& items) {
    return results_as<Result>(std::string(function), map_values(function, list_of(items)));
  }
  template <RemoteFunction Function, class Range>
  [[nodiscard]] Results<RemoteResult<Function>> map(Function function, Range&& items) {
    const std::string& name = detail::remote_name(function);
    return results_as<RemoteResult<Function>>(name, map_values(name, detail::typed_items<Function>(items)));
  }
  /// Creates an object of a class in the worker, under a name. It replaces an older object of that name, and lives
  /// until forget().
  template <class... Arguments>
  void create(std::string_view name, std::string_view class_name, Arguments&&... arguments) {
    auto [list, keywords] = pack_arguments(std::forward<Arguments>(arguments)...);
    CallFuture<Value>(begin_create(name, class_name, std::move(list), std::move(keywords))).get();
  }
  void forget(std::string_view name);

  /// Receives the replies that have arrived and runs the callbacks of their futures. Does not wait. Returns how many
  /// calls are still under way.
  std::size_t take_replies();
  [[nodiscard]] Worker& worker() const;

 private:
  std::shared_ptr<PendingCall> begin(std::string_view function, List arguments, Value keywords);
  std::shared_ptr<PendingCall> begin_create(std::string_view name, std::string_view class_name, List arguments,
                                            Value keywords);
  [[nodiscard]] List map_values(std::string_view function, List items);
  [[nodiscard]] static Value take_result(const std::shared_ptr<PendingCall>& call);
  template <class Result>
  [[nodiscard]] static Result result_of(const std::shared_ptr<PendingCall>& call) {
    if constexpr (std::is_same_v<Result, Value>)
      return take_result(call);
    else
      return CallFuture<Result>(call).get();
  }
  [[nodiscard]] const std::shared_ptr<CallDesk>& desk() const;
  void close();

  std::shared_ptr<CallDesk> desk_;
};

/// Waits until a future is done. Returns the positions of all that are done; empty on time-out. The futures may be of
/// several workers.
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<const CallFutureBase* const> futures, Timeout timeout_s = {});
template <class Result>
[[nodiscard]] std::vector<std::size_t> wait_any(const std::vector<CallFuture<Result>>& futures,
                                                Timeout timeout_s = {}) {
  return wait_any(std::span<const CallFutureBase* const>(bases_of(futures)), timeout_s);
}

}  // namespace miniray
