// Turns a Value into events. Throws UnsendableAt for a part that no message can hold.
#pragma once

#include <algorithm>

#include "miniray/limits.hpp"
#include "miniray/value.hpp"
#include "wire/sink.hpp"
#include "wire/utf8.hpp"

namespace miniray {

/// Returns whether a map can be written as a JSON object: every key is a string, and none looks like an escape.
inline bool is_plain_map(const Map& map) {
  return std::ranges::all_of(map, [](const auto& entry) {
    return entry.first.kind() == Value::Kind::string && !entry.first.string().starts_with('$');
  });
}

template <class Sink>
class ValueWalk {
 public:
  explicit ValueWalk(Sink& sink) : sink_(sink) {}

  void value(const Value& value) {
    using Kind = Value::Kind;
    switch (value.kind()) {
      case Kind::null:
        return sink_.null();
      case Kind::boolean:
        return sink_.boolean(value.boolean());
      case Kind::integer:
        return sink_.integer(value.integer());
      case Kind::unsigned_integer:
        return sink_.unsigned_integer(value.unsigned_integer());
      case Kind::real:
        return sink_.real(value.real());
      case Kind::string:
        return string(value.string());
      case Kind::bytes:
        return bytes(value.bytes());
      case Kind::list:
        return list(value.list());
      case Kind::map:
        return map(value.map());
      case Kind::array:
        return sink_.array(value.array().form(), value.array().dtype(), value.array().shape(), value.array().buffer());
    }
  }

 private:
  // A text for people is abridged where a message would be refused.
  static constexpr bool for_people = requires { Sink::for_people; };

  // Begins a list or a map. Returns false if it is left out, because it lies too deep in a text.
  bool enter() {
    if constexpr (for_people) {
      if (depth_.value() == limits::depth_max) {
        sink_.string("...");
        return false;
      }
    }
    depth_.enter();
    return true;
  }

  void key(const Value& key) {
    if (key.kind() < Value::Kind::list) return value(key);
    if constexpr (for_people) return sink_.string(name_of(key.kind()));
    throw UnsendableAt(std::string(name_of(key.kind())) + " as a key");
  }

  void string(const std::string& string) {
    if constexpr (for_people) return sink_.string(is_utf8(string) ? string : to_utf8(string));
    if (!is_utf8(string)) throw UnsendableAt("a string that is not UTF-8", "send miniray::Bytes");
    sink_.string(string);
  }

  void bytes(const std::string& bytes) {
    if (bytes.size() <= limits::bytes_in_body_max) return sink_.bytes(bytes);
    sink_.bytes_beside(Buffer::borrow(bytes.data(), bytes.size()));
  }

  // Sends a list whose elements are all of one kind as one buffer. Returns false if they are not.
  template <class T>
  bool packed(const List& list, Value::Kind kind, DType dtype) {
    if (!std::ranges::all_of(list, [&](const Value& element) { return element.kind() == kind; })) return false;
    Buffer buffer = Buffer::allocate(list.size() * sizeof(T));
    auto* out = reinterpret_cast<T*>(buffer.data);
    for (const Value& element : list) {
      if constexpr (std::is_same_v<T, double>)
        *out++ = element.real();
      else
        *out++ = element.integer();
    }
    sink_.array(Array::Form::list, dtype, {list.size()}, std::move(buffer));
    return true;
  }

  void list(const List& list) {
    if (list.size() >= limits::packed_list_elements_min &&
        (packed<double>(list, Value::Kind::real, DType::float64) ||
         packed<std::int64_t>(list, Value::Kind::integer, DType::int64)))
      return;
    if (!enter()) return;
    sink_.begin_list(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      try {
        value(list[i]);
      } catch (UnsendableAt& error) {
        error.prepend("[" + std::to_string(i) + "]");
        throw;
      }
    }
    sink_.end_list();
    depth_.leave();
  }

  void map(const Map& map) {
    if (!enter()) return;
    sink_.begin_map(map.size(), is_plain_map(map));
    for (const auto& [name, element] : map) {
      try {
        key(name);
        value(element);
      } catch (UnsendableAt& error) {
        error.prepend("[" + name.text() + "]");
        throw;
      }
    }
    sink_.end_map();
    depth_.leave();
  }

  Sink& sink_;
  Depth depth_;
};

template <class Sink>
void walk(const Value& value, Sink& sink) {
  ValueWalk<Sink>(sink).value(value);
}

}  // namespace miniray
