// Named functions on a worker, called from its coordinator:
//
//   miniray::registry().add("square", [](double x) { return x * x; });
//   miniray::Worker worker(miniray::serve_calls);
//   miniray::Caller caller(worker);
//   double nine = caller.call<double>("square", 3);
//   auto future = caller.call_async<double>("square", 4);   // many may be under way
//   double sixteen = future.get();
//
// Calls go beside plain messages: worker.send() and worker.recv() are what they were. The worker may be a Python one,
// in which a function is "module.function", or what was registered there. There are no threads behind it: replies are
// taken when somebody waits for one, asks whether one is there, or calls take_replies().
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

#include "miniray/convert.hpp"
#include "miniray/error.hpp"
#include "miniray/handle.hpp"
#include "miniray/registry.hpp"
#include "miniray/worker.hpp"

namespace miniray {

// --- In the worker ---------------------------------------------------------------------------------------------------
/// From now on calls are answered while the work function waits in handle.recv(). The functions must outlive the
/// handle.
void answer_calls(Handle& handle, Registry& functions = registry());
/// A work function that does nothing else, until the coordinator closes.
void serve_calls(Handle& handle);

// --- In the coordinator ----------------------------------------------------------------------------------------------
/// The call raised in the worker, which goes on. what() has all of it.
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

/// The call wanted more memory than its memory_bytes (TaskOptions).
class TaskOutOfMemory : public CallError {
 public:
  using CallError::CallError;
};

/// The call was taken back by cancel(), or its Caller is gone.
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

/// What CallFuture has whatever the result's type.
class CallFutureBase {
 public:
  explicit CallFutureBase(std::shared_ptr<PendingCall> call) : call_(std::move(call)) {}

  /// False if it is not done in time. That it failed is told by get().
  bool wait(std::optional<double> timeout_s = {}) const;
  /// Takes the replies that are there; never waits.
  [[nodiscard]] bool ready() const;
  /// False if it is done already. Else its result is not wanted any more: if the call has not begun, it never will.
  bool cancel() const;

 protected:
  /// What came of it, once it is done. Throws TimeoutError; CallError; Cancelled; WorkerDied, WorkerError and
  /// EndOfStream if the worker ended without a reply.
  [[nodiscard]] const Value& result(std::optional<double> timeout_s) const;
  [[nodiscard]] const std::string& function() const;
  void notify(std::function<void()> callback) const;
  /// result(), for who asks only once.
  [[nodiscard]] Value take_result() const;

 private:
  friend std::vector<std::size_t> wait_any(std::span<const CallFutureBase* const>, std::optional<double>);
  std::shared_ptr<PendingCall> call_;
};

[[noreturn]] void wrong_result(const std::string& function, const std::string& wanted, const std::exception& why);
/// What a function returned, as what its caller asked for. ValueError if it is something else.
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
[[nodiscard]] std::vector<Result> results_as(const std::string& function, const List& values) {
  std::vector<Result> results;
  results.reserve(values.size());
  for (const Value& value : values) results.push_back(result_as<Result>(function, value));
  return results;
}

/// A result that may still be on its way. Copies are the same future. As the Caller, it is for one thread at a time.
template <class Result>
class CallFuture : public CallFutureBase {
 public:
  using CallFutureBase::CallFutureBase;

  /// Waits for the result; TimeoutError after, and the call goes on. As often as you like.
  Result get(std::optional<double> timeout_s = {}) const {
    static_assert(!std::is_same_v<Result, std::string_view>, "ask for a std::string: a view would refer to nothing");
    const Value& value = result(timeout_s);
    if constexpr (!std::is_void_v<Result>) return result_as<Result>(function(), value);
  }
  /// Calls it once, with the future, when that is done: in whatever call notices, or at once if it is done. What it
  /// throws comes out of that call.
  void on_done(std::function<void(const CallFuture&)> callback) const {
    notify([future = *this, callback = std::move(callback)] { callback(future); });
  }

 private:
  friend class Caller;
};

/// Makes calls on a worker, which must outlive it and stay where it is. A worker has one Caller.
class Caller {
 public:
  explicit Caller(Worker& worker);
  Caller(Caller&&) noexcept;
  Caller& operator=(Caller&&) noexcept;
  /// Calls that are still under way are given up: get() throws Cancelled, and on_done is not called.
  ~Caller();

  /// Calls and waits. "name.method" is a method of an object that was created there.
  template <class Result = Value, class... Arguments>
  Result call(std::string_view function, Arguments&&... arguments) {
    const auto future = call_async<Result>(function, std::forward<Arguments>(arguments)...);
    if constexpr (std::is_same_v<Result, Value>)
      return future.take_result();
    else
      return future.get();
  }
  /// Returns when the call is on its way.
  template <class Result = Value, class... Arguments>
  [[nodiscard]] CallFuture<Result> call_async(std::string_view function, Arguments&&... arguments) {
    auto [list, keywords] = pack_arguments(std::forward<Arguments>(arguments)...);
    return CallFuture<Result>(begin(function, std::move(list), std::move(keywords)));
  }
  /// Calls the function with each item, in this worker, and waits. The results are in the items' order. Of several
  /// items that raise, the first one's error is thrown, when all have been called.
  template <class Result = Value, class Item>
  [[nodiscard]] std::vector<Result> map(std::string_view function, const std::vector<Item>& items) {
    List list;
    list.reserve(items.size());
    for (const auto& item : items) list.push_back(to_value<Item>(item));
    List values = map_values(function, std::move(list));
    if constexpr (std::is_same_v<Result, Value>)
      return values;
    else
      return results_as<Result>(std::string(function), values);
  }
  /// Makes an object of that class, which lives in the worker under this name: instead of an older one of that name,
  /// and until it is forgotten.
  template <class... Arguments>
  void create(std::string_view name, std::string_view class_name, Arguments&&... arguments) {
    auto [list, keywords] = pack_arguments(std::forward<Arguments>(arguments)...);
    CallFuture<Value>(begin_create(name, class_name, std::move(list), std::move(keywords))).get();
  }
  void forget(std::string_view name);

  /// Takes the replies that are there and runs what waits for them; never waits. How many calls are still under way.
  std::size_t take_replies();
  [[nodiscard]] Worker& worker() const;

 private:
  std::shared_ptr<PendingCall> begin(std::string_view function, List arguments, Value keywords);
  std::shared_ptr<PendingCall> begin_create(std::string_view name, std::string_view class_name, List arguments,
                                            Value keywords);
  [[nodiscard]] List map_values(std::string_view function, List items);
  void close();

  std::shared_ptr<CallDesk> desk_;
};

/// The positions of the futures that are done, of whatever workers; none on time-out.
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<const CallFutureBase* const> futures,
                                                std::optional<double> timeout_s = {});
template <class Result>
[[nodiscard]] std::vector<std::size_t> wait_any(const std::vector<CallFuture<Result>>& futures,
                                                std::optional<double> timeout_s = {}) {
  std::vector<const CallFutureBase*> bases;
  bases.reserve(futures.size());
  for (const CallFutureBase& future : futures) bases.push_back(&future);
  return wait_any(std::span<const CallFutureBase* const>(bases), timeout_s);
}

}  // namespace miniray
