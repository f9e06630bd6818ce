// The functions and classes of a C++ program that other processes may call by name:
//
//   miniray::registry().add("square", [](double x) { return x * x; });
//   miniray::registry().add_class<Counter, int>("Counter")      // made from an int
//       .method("increment", &Counter::increment)
//       .method("reset", [](Counter& counter) { counter = Counter(0); });
//
// A function may be a function pointer or a lambda with any number of parameters. They are passed by value or by const
// reference, and have types that convert.hpp knows. A string_view or a span is valid during the call. What a function
// writes to a std::span<T> stays in the worker.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/convert.hpp"
#include "miniray/export.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

/// A function that other processes can call. `name` is its name in errors.
using CallableFunction = std::function<Value(std::string_view name, List arguments)>;
using CallableMethod = std::function<Value(void* object, std::string_view name, List arguments)>;
using CallableConstructor = std::function<std::shared_ptr<void>(std::string_view name, List arguments)>;

/// A function pointer of any type. It is compared, never called.
using FunctionAddress = void (*)();

struct CallableClass {
  CallableConstructor construct;
  std::map<std::string, CallableMethod, std::less<>> methods;
};

/// Converts the arguments to the types of the function's parameters and calls it. Throws UsageError, which names the
/// function and the argument, if they do not fit. A std::span<T> lets the function write to the arguments.
template <class... Parameters, class Function>
auto call_with(std::string_view name, List& arguments, Function&& function);

template <class Object>
class ClassEntry {
 public:
  explicit ClassEntry(CallableClass& entry) : entry_(&entry) {}
  /// Adds a method, const or not, or a function whose first parameter is an Object&.
  template <class Function>
  ClassEntry& method(std::string name, Function function);

 private:
  CallableClass* entry_;
};

/// One thread at a time may change a registry; several may read it.
class Registry {
 public:
  /// Adds a function. It replaces an older function of that name.
  template <class Function>
  Registry& add(std::string name, Function callable);
  /// Adds a class. Its objects are made from Parameters.
  template <class Object, class... Parameters>
  ClassEntry<Object> add_class(std::string name);

  // These throw UsageError, which lists what there is, if the registry has nothing of that name.
  [[nodiscard]] const CallableFunction& function(std::string_view name) const;
  [[nodiscard]] const CallableClass& object_class(std::string_view name) const;
  [[nodiscard]] bool has_function(std::string_view name) const { return functions_.contains(name); }
  [[nodiscard]] bool has_class(std::string_view name) const { return classes_.contains(name); }
  [[nodiscard]] std::vector<std::string> names() const;  ///< the names of the functions, then of the classes
  /// Returns the name of a function that was added as a function pointer. Throws UsageError, with the cure, if it was
  /// not added.
  [[nodiscard]] const std::string& name_of(FunctionAddress address) const;

 private:
  static void require_name(std::string_view name);
  void note_address(const std::string& name, FunctionAddress address);

  std::map<std::string, CallableFunction, std::less<>> functions_;
  std::map<std::string, CallableClass, std::less<>> classes_;
  std::vector<std::pair<FunctionAddress, std::string>> addresses_;
};

/// Returns the registry of the program, which answer_calls() uses unless it is given another. Fill it before workers
/// start: they have what it has then.
[[nodiscard]] Registry& registry();

// --- How it is done --------------------------------------------------------------------------------------------------
namespace detail {

[[noreturn]] void wrong_count(std::string_view name, std::size_t wanted, std::size_t given);
[[noreturn]] void wrong_argument(std::string_view name, const std::string& signature, std::size_t position,
                                 const std::exception& why);

template <class... Parameters>
std::string signature() {
  return Convert<std::tuple<std::remove_cvref_t<Parameters>...>>::name();
}

// Returns one argument. What a reference refers to stays in the list.
template <class Parameter, class... All>
decltype(auto) argument(std::string_view name, List& arguments, std::size_t position) {
  using Plain = std::remove_cvref_t<Parameter>;
  static_assert(
      requires(Value& value) { Convert<Plain>::from(value); },
      "specialise miniray::Convert for this parameter's type, with name() and from()");
  static_assert(!std::is_reference_v<Parameter> || std::is_const_v<std::remove_reference_t<Parameter>>,
                "a function that is called remotely takes its arguments by value or by const reference");
  try {
    return Convert<Plain>::from(arguments[position]);
  } catch (const std::exception& error) {
    wrong_argument(name, signature<All...>(), position, error);
  }
}

// What a callable takes and returns.
template <class Callable>
struct Signature : Signature<decltype(std::function(std::declval<Callable>()))> {
  static_assert(
      requires { std::function(std::declval<Callable>()); },
      "a function that is called from afar has parameters of known types: no auto, no overloads");
};
template <class Returned, class... Taken>
struct Signature<std::function<Returned(Taken...)>> {
  using Result = Returned;
  using Parameters = std::tuple<Taken...>;
};
template <class Object, class Returned, class... Taken>
struct Signature<Returned (Object::*)(Taken...)> : Signature<std::function<Returned(Object&, Taken...)>> {};
template <class Object, class Returned, class... Taken>
struct Signature<Returned (Object::*)(Taken...) const> : Signature<std::function<Returned(Object&, Taken...)>> {};
template <class Object, class Returned, class... Taken>
struct Signature<Returned (Object::*)(Taken...) noexcept> : Signature<std::function<Returned(Object&, Taken...)>> {};
template <class Object, class Returned, class... Taken>
struct Signature<Returned (Object::*)(Taken...) const noexcept>
    : Signature<std::function<Returned(Object&, Taken...)>> {};

template <class Result, class Call>
Value result_of(Call&& call) {
  if constexpr (std::is_void_v<Result>) {
    std::forward<Call>(call)();
    return {};
  } else if constexpr (std::is_convertible_v<Result, Value>) {
    return std::forward<Call>(call)();
  } else {
    return to_value<std::remove_cvref_t<Result>>(std::forward<Call>(call)());
  }
}

}  // namespace detail

// A result that refers to an argument must be copied before the arguments go: hence auto.
template <class... Parameters, class Function>
auto call_with(std::string_view name, List& arguments, Function&& function) {
  if (arguments.size() != sizeof...(Parameters)) detail::wrong_count(name, sizeof...(Parameters), arguments.size());
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::forward<Function>(function)(detail::argument<Parameters, Parameters...>(name, arguments, i)...);
  }(std::index_sequence_for<Parameters...>());
}

namespace detail {

// These are no lambdas, because a stack shows the lambda of a user by the first argument of these templates.
template <class Function, class... Parameters>
CallableFunction callable_function(Function function, std::tuple<Parameters...>* /*parameters*/) {
  return [function = std::move(function)](std::string_view called, List arguments) mutable {
    return result_of<typename Signature<Function>::Result>(
        [&] { return call_with<Parameters...>(called, arguments, function); });
  };
}

template <class Function, class Object, class First, class... Parameters>
CallableMethod callable_method(Function function, std::tuple<First, Parameters...>* /*parameters*/) {
  static_assert(std::is_invocable_v<Function&, Object&, Parameters...>,
                "a method is one of the class, or takes a reference to the object first");
  return [function = std::move(function)](void* object, std::string_view called, List arguments) mutable {
    return result_of<typename Signature<Function>::Result>([&] {
      return call_with<Parameters...>(called, arguments, [&](auto&&... taken) -> decltype(auto) {
        return std::invoke(function, *static_cast<Object*>(object), std::forward<decltype(taken)>(taken)...);
      });
    });
  };
}

}  // namespace detail

template <class Function>
Registry& Registry::add(std::string name, Function callable) {
  require_name(name);
  using Signature = detail::Signature<Function>;
  if constexpr (std::is_pointer_v<Function>)
    note_address(name, reinterpret_cast<FunctionAddress>(callable));
  else
    note_address(name, nullptr);
  functions_[std::move(name)] =
      detail::callable_function(std::move(callable), static_cast<typename Signature::Parameters*>(nullptr));
  return *this;
}

template <class Object, class... Parameters>
ClassEntry<Object> Registry::add_class(std::string name) {
  require_name(name);
  CallableClass& entry = classes_[std::move(name)];
  entry.methods.clear();
  entry.construct = [](std::string_view called, List arguments) -> std::shared_ptr<void> {
    return call_with<Parameters...>(called, arguments, [](auto&&... taken) {
      return std::make_shared<Object>(std::forward<decltype(taken)>(taken)...);
    });
  };
  return ClassEntry<Object>(entry);
}

template <class Object>
template <class Function>
ClassEntry<Object>& ClassEntry<Object>::method(std::string name, Function function) {
  using Parameters = typename detail::Signature<Function>::Parameters;
  entry_->methods[std::move(name)] =
      detail::callable_method<Function, Object>(std::move(function), static_cast<Parameters*>(nullptr));
  return *this;
}

}  // namespace miniray
