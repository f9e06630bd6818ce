// How a struct is described, so that it travels in messages as a map from the names of its members to their values.
//
// A plain aggregate of up to 16 members needs no description; its members are found, with their names, at compile time:
//
//   struct Point { double x, y; };
//   worker.send(Point{1, 2});                       // {"x": 1.0, "y": 2.0}; Python receives a dict
//
// Another class lists its members once. So does an aggregate that wants other names, has a base class, or more members.
// A member cannot be a C array: a std::array<int, 4> replaces an int[4], and is used in the same way.
//
//   class Point {
//    public:
//     static constexpr auto fields() { return miniray::fields("x", &Point::x_, "y", &Point::y_); }
//    private:
//     double x_ = 0, y_ = 0;
//   };
//
// A type of another library is described from outside, and so are enums that are to travel by name. Without a
// description, an enum travels as its number.
//
//   template <>
//   inline constexpr auto miniray::fields_of<Point> = miniray::fields("x", &Point::x, "y", &Point::y);
//   template <>
//   inline constexpr auto miniray::enumerators_of<Color> = miniray::enumerators("red", Color::red, "blue",
//   Color::blue);
//
// To receive a described class, it must have a default constructor. The message may have other keys as well. A member
// that is a std::optional may be missing from the message.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

template <class Class, class Member>
struct Field {
  std::string_view name;
  Member Class::* member;
};
template <class Enum>
struct Enumerator {
  std::string_view name;
  Enum value;
};

/// Describes a class by the names of its members and pointers to them, alternately.
template <class... Parts>
[[nodiscard]] constexpr auto fields(Parts... parts) {
  static_assert(sizeof...(Parts) > 0 && sizeof...(Parts) % 2 == 0,
                "list names and members alternately: fields(\"x\", &Point::x, \"y\", &Point::y)");
  const std::tuple all(parts...);
  const auto field = []<class Class, class Member>(std::string_view name, Member Class::* member) {
    return Field<Class, Member>{name, member};
  };
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::tuple(field(std::get<2 * i>(all), std::get<2 * i + 1>(all))...);
  }(std::make_index_sequence<sizeof...(Parts) / 2>());
}

/// Describes an enum by the names of its values and the values, alternately.
template <class... Parts>
[[nodiscard]] constexpr auto enumerators(Parts... parts) {
  static_assert(sizeof...(Parts) > 0 && sizeof...(Parts) % 2 == 0,
                "list names and values alternately: enumerators(\"red\", Color::red, \"blue\", Color::blue)");
  const std::tuple all(parts...);
  using Enum = std::tuple_element_t<1, std::tuple<Parts...>>;
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::array{Enumerator<Enum>{std::get<2 * i>(all), std::get<2 * i + 1>(all)}...};
  }(std::make_index_sequence<sizeof...(Parts) / 2>());
}

namespace detail {

struct NotDescribed {};

template <class T>
constexpr auto own_fields() {
  if constexpr (requires { T::fields(); })
    return T::fields();
  else
    return NotDescribed{};
}

}  // namespace detail

/// What describes a class: its own fields(), unless this is specialised.
template <class T>
inline constexpr auto fields_of = detail::own_fields<T>();
/// What describes an enum that travels by name. Specialise it.
template <class T>
inline constexpr auto enumerators_of = detail::NotDescribed{};

// --- How aggregates are taken apart ----------------------------------------------------------------------------------
namespace detail {

template <class T>
concept DescribedClass = std::is_class_v<T> && !std::is_same_v<std::remove_cv_t<decltype(fields_of<T>)>, NotDescribed>;
template <class T>
concept DescribedEnum =
    std::is_enum_v<T> && !std::is_same_v<std::remove_cv_t<decltype(enumerators_of<T>)>, NotDescribed>;

/// Converts to anything, so that it can initialise any member.
struct AnyMember {
  template <class T>
  operator T() const noexcept;
};
inline constexpr std::size_t reflected_members_max = 16;

template <class T, std::size_t... i>
consteval bool takes_members(std::index_sequence<i...>) {
  return requires { T{(static_cast<void>(i), AnyMember{})...}; };
}
/// Counts the members, or one more than the limit. It counts down, because a member may have no default value.
template <class T, std::size_t count = reflected_members_max + 1>
consteval std::size_t count_members() {
  if constexpr (count == 0 || takes_members<T>(std::make_index_sequence<count>()))
    return count;
  else
    return count_members<T, count - 1>();
}

// Whether T can be initialised by `before` values, then by one in braces that has two parts, and then by `after`
// values.
template <class T, std::size_t... i, std::size_t... k>
consteval bool takes_pair(std::index_sequence<i...> /*before*/, std::index_sequence<k...> /*after*/) {
  return requires {
    T{(static_cast<void>(i), AnyMember{})..., {AnyMember{}, AnyMember{}}, (static_cast<void>(k), AnyMember{})...};
  };
}
template <class T, std::size_t before, std::size_t behind, std::size_t... fewer>
consteval bool takes_less_behind_pair(std::index_sequence<fewer...> /*to try*/) {
  using Before = std::make_index_sequence<before>;
  return !takes_pair<T>(Before(), std::make_index_sequence<behind>()) &&
         (takes_pair<T>(Before(), std::make_index_sequence<fewer>()) || ...);
}
template <class T, std::size_t count, std::size_t... before>
consteval bool has_c_array_at(std::index_sequence<before...> /*to try*/) {
  return (takes_less_behind_pair<T, before, count - 1 - before>(std::make_index_sequence<count - 1 - before>()) || ...);
}
/// Whether a plain aggregate has a C array of more than one element. Without braces, such a member takes a value for
/// each of its elements, so count_members() counts elements. With braces around them, there is room for fewer values
/// behind this member than without; behind a member of any other type, there is room for as many.
template <class T>
consteval bool has_c_array() {
  constexpr std::size_t count = count_members<T>();
  return has_c_array_at<T, count>(std::make_index_sequence<count>());
}
template <class... Members>
inline constexpr bool no_c_arrays = (!std::is_array_v<Members> && ...);

/// Calls `function` with references to all members.
template <class T, class Function>
constexpr decltype(auto) with_members(T& object, Function&& function) {
  static_assert(
      !has_c_array<std::remove_const_t<T>>(),
      "this struct has a member that is a C array, which miniray cannot send or receive: make it a std::array "
      "(std::array<int, 4> in place of int[4])");
  constexpr std::size_t count = count_members<std::remove_const_t<T>>();
  static_assert(count > 0 && count <= reflected_members_max,
                "miniray finds the members of plain aggregates that have up to 16; give this struct a static fields()");
  if constexpr (count == 1) {
    auto& [a] = object;
    return function(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = object;
    return function(a, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = object;
    return function(a, b, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = object;
    return function(a, b, c, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = object;
    return function(a, b, c, d, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, f] = object;
    return function(a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, f, g] = object;
    return function(a, b, c, d, e, f, g);
  } else if constexpr (count == 8) {
    auto& [a, b, c, d, e, f, g, h] = object;
    return function(a, b, c, d, e, f, g, h);
  } else if constexpr (count == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = object;
    return function(a, b, c, d, e, f, g, h, i);
  } else if constexpr (count == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = object;
    return function(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (count == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = object;
    return function(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (count == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = object;
    return function(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (count == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = object;
    return function(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (count == 14) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = object;
    return function(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (count == 15) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = object;
    return function(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else if constexpr (count == 16) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = object;
    return function(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  }
}

// A member's name is read from the text that the compiler makes of a pointer to it. The object that has the member is
// never defined, because only its address is needed.
template <class T>
struct Wrapped {
  T object;
};
template <class T>
struct MemberAddress {
  const T* address;
};
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
template <class T>
extern const Wrapped<T> undefined_object;
template <class T>
consteval auto member_addresses() {
  return with_members(undefined_object<T>.object, []<class... Members>(const Members&... members) {
    return std::tuple<MemberAddress<Members>...>{{&members}...};
  });
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

template <auto address>
consteval const char* text_of_address() {
  return __PRETTY_FUNCTION__;  // gcc: "... = {(& undefined_object<P>.Wrapped<P>::object.P::x)}]", clang:
                               // "...object.x}]"
}
constexpr bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80) != 0;
}
template <auto address>
consteval std::string_view member_name() {
  std::string_view text = text_of_address<address>();
  while (!is_name_character(text.back())) text.remove_suffix(1);
  std::size_t start = text.size();
  while (is_name_character(text[start - 1])) --start;
  return text.substr(start);
}

/// The type's name without its namespaces, for errors.
template <class T>
consteval const char* text_of_type() {
  return __PRETTY_FUNCTION__;  // "... [with T = ns::Point]"
}
template <class T>
constexpr std::string_view type_name() {
  std::string_view text = text_of_type<T>();
  text.remove_prefix(text.rfind("T = ") + 4);
  text.remove_suffix(1);
  const std::size_t end = text.find('<');
  const std::size_t colons = text.substr(0, end).rfind("::");
  return colons == std::string_view::npos ? text : text.substr(colons + 2);
}

/// Calls function(name, member) for each member of a described class or of an aggregate.
template <class T, class Function>
constexpr void each_member(T& object, Function&& function) {
  using Plain = std::remove_const_t<T>;
  if constexpr (DescribedClass<Plain>) {
    std::apply(
        [&](const auto&... field) {
          static_assert(no_c_arrays<std::remove_reference_t<decltype(object.*(field.member))>...>,
                        "a member in the description of this class is a C array, which miniray cannot send or receive: "
                        "make it a std::array (std::array<int, 4> in place of int[4])");
          (function(field.name, object.*(field.member)), ...);
        },
        fields_of<Plain>);
  } else {
    with_members(object, [&](auto&... members) {
      static_assert(no_c_arrays<std::remove_reference_t<decltype(members)>...>,
                    "this struct has a member that is a C array of one element, which miniray cannot send or receive: "
                    "leave out the [1]");
      [&]<std::size_t... i>(std::index_sequence<i...>) {
        (function(member_name<std::get<i>(member_addresses<Plain>())>(), members), ...);
      }(std::index_sequence_for<decltype(members)...>());
    });
  }
}

}  // namespace detail

}  // namespace miniray
