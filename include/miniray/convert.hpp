// Converts C++ types to values of messages and back. Typed messages, functions that are called remotely, and their
// callers use it. Nothing needs to be done for these types:
//
//   bool, integers, floating point       bool, integer, real; a number out of range is an error
//   std::string, std::string_view        string
//   Bytes, std::vector<std::byte>        bytes
//   std::vector<number>, std::span       array; receivers accept a list of numbers too
//   std::array, deque, list, set         list
//   std::pair, std::tuple                list of that length
//   std::map, std::unordered_map         map; the keys are numbers, strings or bools
//   std::optional, std::variant          null or the value; the first alternative that accepts the value
//   structs, enums                       map of the members' names, and a number; see fields.hpp
//   std::chrono durations                real: seconds. Integers are accepted, as seconds
//   std::chrono time points              integer: nanoseconds since the clock's epoch, as Python's time.time_ns(); a
//   real
//                                        is accepted, as seconds, as Python's time.time()
//   std::filesystem::path                string, or bytes if it is not UTF-8
//
//   double x = miniray::convert<double>(value);   // throws Mismatch if the value is not a number
//   miniray::Value value = miniray::to_value(x);
//
// To convert another type, specialise Convert. field() takes a member out of a map, and its errors name the member:
//
//   template <>
//   struct miniray::Convert<Interval> {
//     static std::string name() { return "Interval"; }
//     static Interval from(const Value& value) { return {field<double>(value, "from"), field<double>(value, "to")}; }
//     static Value to(const Interval& interval) { return {{"from", interval.begin()}, {"to", interval.end()}}; }
//   };
#pragma once

#include "miniray/convert_containers.hpp"
#include "miniray/convert_core.hpp"
#include "miniray/convert_types.hpp"
#include "miniray/export.hpp"
#include "miniray/fields.hpp"

namespace MINIRAY_API miniray {

template <class T>
T Value::get() const& {
  return convert<T>(*this);
}
template <class T>
T Value::get() & {
  return convert<T>(*this);
}
template <class T>
T Value::get() && {
  return convert<T>(std::move(*this));
}
template <class T>
T Value::get() const&& {
  return convert<T>(std::move(*this));
}

template <detail::KeyName Name, class T>
detail::Fallback<T> Value::value(const Name& key, T&& fallback) const {
  using Result = detail::Fallback<T>;
  static_assert(!detail::refers_to_value<Result>, "ask for a type that owns its content");
  if (!contains(key)) return Result(std::forward<T>(fallback));
  return field<Result>(*this, detail::name_from(key));
}

}  // namespace miniray
