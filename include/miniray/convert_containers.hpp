// The part of convert.hpp for containers. Errors name the place of the element.
#pragma once

#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/convert_core.hpp"
#include "miniray/convert_types.hpp"
#include "miniray/export.hpp"

namespace MINIRAY_API miniray {
namespace detail {

template <class T>
concept Number = (std::integral<T> || std::same_as<T, float> || std::same_as<T, double>) && !std::same_as<T, bool>;

/// Returns the list. An array of one dimension becomes one, which `copy` then holds. Throws Mismatch for other values.
[[nodiscard]] const List& items_of(const Value& value, const std::string& wanted, List& copy);
/// Whether every number of one type is also one of the other.
[[nodiscard]] bool widens(DType from, DType to);

/// Calls function(item) with each converted item of a list or of an array of one dimension.
template <class Item, class Function>
void each_item(const Value& value, const std::string& wanted, Function&& function) {
  List copy;
  const List& items = items_of(value, wanted, copy);
  std::size_t i = 0;
  try {
    for (; i < items.size(); ++i) function(convert<Item>(items[i]));
  } catch (const ValueError&) {
    throw_inside(step_of(i));
  }
}
/// Makes a list of a container's items.
template <class Item, class Container>
[[nodiscard]] List list_from(const Container& items) {
  List list;
  list.reserve(items.size());
  for (const auto& item : items) list.push_back(to_value<Item>(item));
  return list;
}

// std::deque, std::list
template <class T>
struct ConvertDefault<T, Category::sequence> {
  using Item = typename T::value_type;
  static std::string name() { return "list of " + Convert<Item>::name(); }
  static T from(const Value& value)
    requires Receivable<Item>
  {
    T result;
    each_item<Item>(value, name(), [&](Item&& item) { result.push_back(std::move(item)); });
    return result;
  }
  static Value to(const T& items)
    requires SendableItem<Item>
  {
    return list_from<Item>(items);
  }
};

// std::set, std::unordered_set
template <class T>
struct ConvertDefault<T, Category::set> {
  using Item = typename T::value_type;
  static std::string name() { return "list of " + Convert<Item>::name(); }
  static T from(const Value& value)
    requires Receivable<Item>
  {
    T result;
    each_item<Item>(value, name(), [&](Item&& item) { result.insert(std::move(item)); });
    return result;
  }
  static Value to(const T& items)
    requires SendableItem<Item>
  {
    return list_from<Item>(items);
  }
};

// std::map, std::unordered_map
template <class T>
struct ConvertDefault<T, Category::map> {
  using Key = typename T::key_type;
  using Mapped = typename T::mapped_type;
  static std::string name() {
    return "map of " + (std::same_as<Key, std::string> ? "" : Convert<Key>::name() + " to ") + Convert<Mapped>::name();
  }
  static T from(const Value& value)
    requires(Receivable<Key> && Receivable<Mapped>)
  {
    T result;
    for (const auto& [key, mapped] : Convert<Map>::from(value)) {
      Key converted = key_from(key);
      try {
        result.insert_or_assign(std::move(converted), convert<Mapped>(mapped));
      } catch (const ValueError&) {
        throw_inside(step_of(key));
      }
    }
    return result;
  }
  static Value to(const T& entries)
    requires(SendableItem<Key> && SendableItem<Mapped>)
  {
    Map map;
    map.reserve(entries.size());
    for (const auto& [key, mapped] : entries) map.emplace_back(to_value<Key>(key), to_value<Mapped>(mapped));
    return map;
  }

 private:
  static Key key_from(const Value& key) {
    try {
      return convert<Key>(key);
    } catch (const ValueError&) {
      throw Mismatch::saying(Convert<Key>::name(), "has a key that is no " + Convert<Key>::name() + ": " + key.text());
    }
  }
};

}  // namespace detail

/// A vector of numbers is an array of one dimension; it also converts from a list, and from an array whose numbers fit
/// into T whatever they are. Other vectors are lists.
template <class T>
struct Convert<std::vector<T>> {
  static std::string name() {
    if constexpr (Receivable<T>)
      return "list of " + Convert<T>::name();
    else
      return std::string("array of ") + name_of(dtype_of<T>());
  }
  static std::vector<T> from(const Value& value)
    requires(ArrayElement<T> || Receivable<T>)
  {
    std::vector<T> result;
    if constexpr (ArrayElement<T> && !std::same_as<T, bool>) {
      if (value.is_array() && value.array().shape().size() == 1 &&
          !(detail::Number<T> && detail::widens(value.array().dtype(), dtype_of<T>()))) {
        const std::span<const T> elements = detail::array_from(value, dtype_of<T>()).template elements<T>();
        return {elements.begin(), elements.end()};
      }
    }
    if constexpr (Receivable<T>) {
      if (value.is_list()) result.reserve(value.size());
      detail::each_item<T>(value, name(), [&](auto&& item) { result.push_back(std::forward<decltype(item)>(item)); });
    } else {
      throw Mismatch(name(), value);
    }
    return result;
  }
  static Value to(const std::vector<T>& elements)
    requires(ArrayElement<T> || detail::SendableItem<T>)
  {
    if constexpr (ArrayElement<T> && !std::same_as<T, bool>)
      return Array::of(elements);
    else
      return detail::list_from<T>(elements);
  }
  static Value to(std::vector<T>&& elements)
    requires(ArrayElement<T> || detail::SendableItem<T>)
  {
    if constexpr (ArrayElement<T> && !std::same_as<T, bool>)
      return Array::of(std::move(elements));
    else
      return detail::list_from<T>(elements);
  }
};

template <>
struct Convert<std::vector<std::byte>> {
  static std::string name() { return "bytes"; }
  static std::vector<std::byte> from(const Value& value);
  static Value to(const std::vector<std::byte>& bytes);
};

/// Converts from a list that has exactly as many elements as the array.
template <class T, std::size_t size>
struct Convert<std::array<T, size>> {
  static std::string name() { return "list of " + std::to_string(size) + " " + Convert<T>::name(); }
  static std::array<T, size> from(const Value& value)
    requires Receivable<T>
  {
    List copy;
    const std::string wanted = name();
    const List& items = detail::items_of(value, wanted, copy);
    if (items.size() != size)
      throw Mismatch::saying(wanted, "is a list of " + std::to_string(items.size()) + ": " + value.text());
    std::array<T, size> result{};
    std::size_t i = 0;
    detail::each_item<T>(value, name(), [&](auto&& item) { result[i++] = std::forward<decltype(item)>(item); });
    return result;
  }
  static Value to(const std::array<T, size>& elements)
    requires detail::SendableItem<T>
  {
    return detail::list_from<T>(elements);
  }
};

/// Converts from a list that has exactly as many elements as the tuple.
template <class Tuple, bool receivable, bool sendable>
struct ConvertTuple {
  static std::string name() {
    std::string names;
    each([&]<std::size_t i>() { names += (i == 0 ? "" : ", ") + Convert<std::tuple_element_t<i, Tuple>>::name(); });
    return "(" + names + ")";
  }
  static Tuple from(const Value& value)
    requires receivable
  {
    if (!value.is_list()) throw Mismatch(name(), value);
    if (value.size() != std::tuple_size_v<Tuple>)
      throw Mismatch::saying(name(), "is a list of " + std::to_string(value.size()) + ": " + value.text());
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return Tuple{element<std::tuple_element_t<i, Tuple>>(value, i)...};
    }(std::make_index_sequence<std::tuple_size_v<Tuple>>());
  }
  static Value to(const Tuple& tuple)
    requires sendable
  {
    List list;
    each([&]<std::size_t i>() { list.push_back(to_value<std::tuple_element_t<i, Tuple>>(std::get<i>(tuple))); });
    return list;
  }

 private:
  template <class Function>
  static void each(Function function) {
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (function.template operator()<i>(), ...);
    }(std::make_index_sequence<std::tuple_size_v<Tuple>>());
  }
};
template <class... Elements>
struct Convert<std::tuple<Elements...>>
    : ConvertTuple<std::tuple<Elements...>, (Receivable<Elements> && ...), (detail::SendableItem<Elements> && ...)> {};
template <class First, class Second>
struct Convert<std::pair<First, Second>>
    : ConvertTuple<std::pair<First, Second>, Receivable<First> && Receivable<Second>,
                   detail::SendableItem<First> && detail::SendableItem<Second>> {};

}  // namespace miniray
