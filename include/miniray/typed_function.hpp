// Functions that are called by what they are, not by a name. The compiler checks the arguments and knows the result:
//
//   miniray::registry().add("square", square);                     // double square(double)
//   auto nine = pool.submit(square, 3);                            // a registered function: TaskFuture<double>
//   auto four = pool.submit([](double x) { return x * x; }, 2.0);  // a lambda without captures needs no registration
//   auto five = pool.submit(miniray::fn<square>, 3);               // nor does a function in fn<>
//
// A lambda or a fn<> can be called in workers that run the same build of the same program: forked workers, and the
// nodes of a cluster to which the program was copied. Each of them enters itself, before main(), into a table of its
// program under a name that is made of the build id and its type. That name is sent, never an address: a worker calls
// only what its own table has, and if it runs another program the call throws CallError, which says so. A function of a
// library that was loaded with dlopen can be called in workers that had loaded the library before they were called.
//
// Function pointers are looked up in registry() by their address, and called by the name that they have there; so they
// can be called in every worker that has a function of that name.
#pragma once

#include <concepts>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/convert.hpp"
#include "miniray/export.hpp"
#include "miniray/registry.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

template <auto function, class Pointer = decltype(function)>
struct FunctionConstant;
template <auto function, class Result, class... Parameters>
struct FunctionConstant<function, Result (*)(Parameters...)> {
  Result operator()(Parameters... parameters) const { return function(std::forward<Parameters>(parameters)...); }
};
template <auto function, class Result, class... Parameters>
struct FunctionConstant<function, Result (*)(Parameters...) noexcept> {
  Result operator()(Parameters... parameters) const { return function(std::forward<Parameters>(parameters)...); }
};
/// A function that can be called remotely without being registered: pool.submit(miniray::fn<square>, 3).
template <auto function>
inline constexpr FunctionConstant<function> fn{};

/// What submit(), map(), call() and call_async() take in place of a name: a function, or a function object whose
/// parameters have known types, so neither a lambda with auto parameters nor an overloaded function.
template <class Function>
concept RemoteFunction = std::is_function_v<std::remove_pointer_t<Function>> ||
                         (std::is_class_v<Function> && requires { &Function::operator(); });

namespace detail {

/// An entry of the program's table of functions without a name. It enters itself when it is made, and leaves when its
/// library is unloaded.
class TypedEntry {
 public:
  using Call = Value (*)(std::string_view name, List arguments);
  /// `type` names the type, and more; it lives as long as the entry.
  TypedEntry(std::string_view type, Call call) noexcept;
  TypedEntry(const TypedEntry&) = delete;
  TypedEntry& operator=(const TypedEntry&) = delete;
  ~TypedEntry();
  /// The name by which workers of the same program know it. Throws UsageError if the program cannot be identified.
  [[nodiscard]] std::string name() const;

 private:
  friend class TypedTable;
  std::string_view type_;
  Call call_;
  TypedEntry* next_ = nullptr;
};

template <class Function>
constexpr std::string_view type_text() {
  return __PRETTY_FUNCTION__;
}

template <class Function>
Value call_typed(std::string_view name, List arguments) {
  using Signature = detail::Signature<Function>;
  return [&]<class... Parameters>(std::tuple<Parameters...>*) {
    return result_of<typename Signature::Result>([&] { return call_with<Parameters...>(name, arguments, Function()); });
  }(static_cast<typename Signature::Parameters*>(nullptr));
}

// The entry of a type is made before main() if some code of the program calls the function remotely.
template <class Function>
struct Typed {
  static const TypedEntry entry;
};
template <class Function>
const TypedEntry Typed<Function>::entry(type_text<Function>(), &call_typed<Function>);

template <class Function>
[[nodiscard]] const std::string& remote_name(Function function) {
  if constexpr (std::is_pointer_v<Function>) {
    return registry().name_of(reinterpret_cast<FunctionAddress>(function));
  } else {
    static_assert(std::is_empty_v<Function>,
                  "a function object that holds something (a lambda with captures, a std::function) cannot run in "
                  "another process: pass what it holds as arguments, and write []");
    static_assert(!std::is_empty_v<Function> || std::is_default_constructible_v<Function>,
                  "a lambda that runs in another process has no default capture: write [] in place of [=] or [&]");
    if constexpr (std::is_empty_v<Function> && std::is_default_constructible_v<Function>) {
      static const std::string name = Typed<Function>::entry.name();
      return name;
    }
  }
}

// The type in which the caller gets what a function returns: one that refers to nothing in the worker.
template <class Returned>
struct Received {
  using type = Returned;
};
template <>
struct Received<std::string_view> : Received<std::string> {};
template <>
struct Received<const char*> : Received<std::string> {};
template <class Element, std::size_t extent>
struct Received<std::span<Element, extent>> : Received<std::vector<std::remove_const_t<Element>>> {};

// The type to which an argument is converted for a parameter. Sending only reads.
template <class Parameter>
struct Given {
  using type = Parameter;
};
template <class Element, std::size_t extent>
struct Given<std::span<Element, extent>> {
  using type = std::span<const Element, extent>;
};

// Whether an argument can be given for a parameter. Numbers are checked again in the worker: they have to fit.
template <class Argument, class Parameter>
inline constexpr bool fits = std::is_same_v<Argument, Value> || std::is_same_v<Argument, Array> ||
                             (std::is_convertible_v<Argument, Parameter> &&
                              !(std::is_floating_point_v<Argument> && std::is_integral_v<Parameter>));

template <std::size_t position, class Argument, class Parameter>
struct RequireFit {
  static_assert(fits<Argument, Parameter>,
                "this argument does not convert to the parameter of the function that is called remotely: RequireFit "
                "names the argument's position (from 0), its type, and the parameter's type");
  static constexpr bool value = fits<Argument, Parameter>;
};

template <class Parameter, std::size_t position, class Argument>
[[nodiscard]] Value typed_argument(Argument&& argument) {
  using Given = std::remove_cvref_t<Argument>;
  using Wanted = typename detail::Given<std::remove_cvref_t<Parameter>>::type;
  if constexpr (!RequireFit<position, std::decay_t<Argument>, Wanted>::value)
    return {};
  else if constexpr (std::is_same_v<Given, Value> || std::is_same_v<Given, Array>)
    return std::forward<Argument>(argument);
  else if constexpr (std::is_same_v<Given, Wanted> ||
                     (std::is_arithmetic_v<Given> && std::is_arithmetic_v<Wanted> && !std::is_same_v<Wanted, bool>))
    return to_value<Given>(argument);
  else
    return to_value<Wanted>(static_cast<Wanted>(std::forward<Argument>(argument)));
}

template <class Function, class... Arguments>
[[nodiscard]] List typed_arguments(Arguments&&... arguments) {
  return [&]<class... Parameters>(std::tuple<Parameters...>*) {
    static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                  "the function that is called remotely takes another number of arguments than it is given");
    List list;
    if constexpr (sizeof...(Parameters) == sizeof...(Arguments)) {
      list.reserve(sizeof...(Arguments));
      [&]<std::size_t... i>(std::index_sequence<i...>) {
        (list.push_back(typed_argument<Parameters, i>(std::forward<Arguments>(arguments))), ...);
      }(std::index_sequence_for<Parameters...>());
    }
    return list;
  }(static_cast<typename Signature<Function>::Parameters*>(nullptr));
}

// The items of a map of a function with one parameter.
template <class Function, class Range>
[[nodiscard]] List typed_items(Range&& range) {
  using Parameters = typename Signature<Function>::Parameters;
  static_assert(std::tuple_size_v<Parameters> == 1, "map calls a function of one parameter with each item");
  List list;
  if constexpr (std::tuple_size_v<Parameters> == 1) {
    if constexpr (requires { static_cast<std::size_t>(range.size()); })
      list.reserve(static_cast<std::size_t>(range.size()));
    using Item = std::iter_value_t<decltype(std::begin(range))>;
    for (auto&& item : range)
      list.push_back(typed_argument<std::tuple_element_t<0, Parameters>, 0>(static_cast<const Item&>(item)));
  }
  return list;
}

/// Calls the function of that name, which TypedEntry::name() made, in a program that has it. Throws UsageError, which
/// says why it may not be here, if this program does not have it.
[[nodiscard]] TypedEntry::Call typed_function(std::string_view name);
/// Whether it is a name that TypedEntry::name() made, here or in another program.
[[nodiscard]] bool is_typed_name(std::string_view name);
/// The part of such a name that is for people; another name as it is.
[[nodiscard]] std::string_view spoken_name(std::string_view name);

}  // namespace detail

namespace detail {

template <class Function>
struct RemoteResultOf {};  // it has no type, so that a call by name is not taken for one of these
template <RemoteFunction Function>
struct RemoteResultOf<Function> : Received<std::remove_cvref_t<typename Signature<Function>::Result>> {};

}  // namespace detail

/// The type in which a caller gets the result of a function: what it returns, but a std::string for a view, and a
/// std::vector for a span.
template <class Function>
using RemoteResult = typename detail::RemoteResultOf<Function>::type;

}  // namespace miniray
