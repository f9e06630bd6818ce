// Turns a MessagePack body into events. Input is untrusted: anything malformed throws ProtocolError.
#pragma once

#include <cstring>
#include <msgpack/null_visitor.hpp>
#include <msgpack/unpack.hpp>

#include "miniray/error.hpp"
#include "wire/msgpack_writer.hpp"
#include "wire/sink.hpp"
#include "wire/utf8.hpp"

namespace miniray {

template <class Sink>
class MsgpackVisitor : public msgpack::null_visitor {
 public:
  explicit MsgpackVisitor(Sink& sink) : sink_(sink) {}

  bool visit_nil() { return sink_.null(), true; }
  bool visit_boolean(bool value) { return sink_.boolean(value), true; }
  bool visit_positive_integer(std::uint64_t value) {
    if (value <= static_cast<std::uint64_t>(INT64_MAX))
      sink_.integer(static_cast<std::int64_t>(value));
    else
      sink_.unsigned_integer(value);
    return true;
  }
  bool visit_negative_integer(std::int64_t value) { return sink_.integer(value), true; }
  bool visit_float32(float value) { return sink_.real(static_cast<double>(value)), true; }
  bool visit_float64(double value) { return sink_.real(value), true; }
  bool visit_str(const char* data, std::uint32_t size) {
    const std::string_view string(data, size);
    if (!is_utf8(string)) throw ProtocolError("a string in a message is not UTF-8");
    return sink_.string(string), true;
  }
  bool visit_bin(const char* data, std::uint32_t size) { return sink_.bytes(std::string_view(data, size)), true; }

  bool visit_ext(const char* data, std::uint32_t size_with_type) {  // data[0] is the type
    const auto type = static_cast<Extension>(data[0]);
    const std::size_t size = size_with_type - 1;
    if (type == Extension::bytes && size == 0) return sink_.bytes_beside(), true;
    if (in_key_) throw ProtocolError("a key in a message is an array");
    if (type != Extension::array || size < 2 || (size - 2) % 8 != 0 || (size - 2) / 8 > limits::dimensions_max ||
        static_cast<std::uint8_t>(data[1]) > static_cast<std::uint8_t>(Array::Form::descriptor) ||
        static_cast<std::uint8_t>(data[2]) >= dtype_count)
      throw ProtocolError("a message has a malformed or unknown extension (type " +
                          std::to_string(static_cast<int>(type)) + ", " + std::to_string(size) + " bytes)");
    Shape shape((size - 2) / 8);
    if (!shape.empty()) std::memcpy(shape.data(), data + 3, 8 * shape.size());
    sink_.array(static_cast<Array::Form>(data[1]), static_cast<DType>(data[2]), std::move(shape));
    return true;
  }

  bool start_array(std::uint32_t size) { return enter(), sink_.begin_list(size), true; }
  bool end_array() { return --depth_, sink_.end_list(), true; }
  bool start_map(std::uint32_t size) { return enter(), sink_.begin_map(size, true), true; }
  bool end_map() { return --depth_, sink_.end_map(), true; }
  bool start_map_key() { return in_key_ = true; }
  bool end_map_key() { return in_key_ = false, true; }

  void parse_error(std::size_t, std::size_t at) { fail("is malformed", at); }
  void insufficient_bytes(std::size_t, std::size_t at) { fail("ends too early", at); }

 private:
  void enter() {
    if (in_key_) throw ProtocolError("a key in a message is a list or a map");
    if (++depth_ > limits::depth_max)
      throw ProtocolError("a message is nested deeper than " + std::to_string(limits::depth_max) + " levels");
  }
  [[noreturn]] static void fail(const char* what, std::size_t at) {
    throw ProtocolError("a message's MessagePack body " + std::string(what) + " at byte " + std::to_string(at));
  }

  Sink& sink_;
  std::size_t depth_ = 0;
  bool in_key_ = false;
};

/// Reads a body that is one number, truth value or null: the library allocates memory before it looks at a body.
/// Returns false, and gives the sink nothing, if the body is something else.
template <class Sink>
bool read_msgpack_scalar(std::string_view body, MsgpackVisitor<Sink>& visitor) {
  if (body.empty()) return false;
  const auto first = static_cast<std::uint8_t>(body[0]);
  const auto number = [&]<class T>(T) {
    T big_endian;
    std::memcpy(&big_endian, body.data() + 1, sizeof(T));
    if constexpr (sizeof(T) == 2) return __builtin_bswap16(big_endian);
    if constexpr (sizeof(T) == 4) return __builtin_bswap32(big_endian);
    if constexpr (sizeof(T) == 8) return __builtin_bswap64(big_endian);
    return big_endian;
  };
  switch (body.size()) {
    case 1:
      if (first <= 0x7f) return visitor.visit_positive_integer(first);
      if (first >= 0xe0) return visitor.visit_negative_integer(static_cast<std::int8_t>(first));
      if (first == 0xc0) return visitor.visit_nil();
      return (first == 0xc2 || first == 0xc3) && visitor.visit_boolean(first == 0xc3);
    case 2:
      return first == 0xcc && visitor.visit_positive_integer(number(std::uint8_t{}));
    case 3:
      return first == 0xcd && visitor.visit_positive_integer(number(std::uint16_t{}));
    case 5:
      return first == 0xce && visitor.visit_positive_integer(number(std::uint32_t{}));
    case 9:
      if (first == 0xcf) return visitor.visit_positive_integer(number(std::uint64_t{}));
      return first == 0xcb && visitor.visit_float64(std::bit_cast<double>(number(std::uint64_t{})));
    default:
      return false;
  }
}

template <class Sink>
void read_msgpack(std::string_view body, Sink& sink) {
  MsgpackVisitor<Sink> visitor(sink);
  if (read_msgpack_scalar(body, visitor)) return;
  std::size_t offset = 0;
  if (!msgpack::parse(body.data(), body.size(), offset, visitor) || offset != body.size())
    throw ProtocolError("a message's MessagePack body is not one value: it has " + std::to_string(body.size()) +
                        " bytes, and the value ends after " + std::to_string(offset));
}

}  // namespace miniray
