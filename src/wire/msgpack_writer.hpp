// Writes events as a MessagePack body. Arrays and long bytes become buffers beside the body; an extension in the body
// marks their place.
#pragma once

#include <bit>
#include <cstring>
#include <msgpack/pack.hpp>

#include "miniray/message.hpp"

namespace miniray {

/// MessagePack extension types, part of the wire format.
enum class Extension : std::int8_t {
  array = 1,  ///< u8 form, u8 dtype, then a u64 little-endian extent for each dimension
  bytes = 2,  ///< no payload
};

class MsgpackWriter {
 public:
  explicit MsgpackWriter(Message& message) : message_(message), out_{message.body}, packer_(out_) {}

  void null() { packer_.pack_nil(); }
  void boolean(bool value) { value ? packer_.pack_true() : packer_.pack_false(); }
  void integer(std::int64_t value) { packer_.pack_int64(value); }
  void unsigned_integer(std::uint64_t value) { packer_.pack_uint64(value); }
  void real(double value) {  // not with the library's pack_double, which turns 1.0 into an integer
    const std::uint64_t bits = __builtin_bswap64(std::bit_cast<std::uint64_t>(value));
    message_.body += '\xcb';
    message_.body.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  void string(std::string_view value) {
    packer_.pack_str(static_cast<std::uint32_t>(value.size()));
    packer_.pack_str_body(value.data(), static_cast<std::uint32_t>(value.size()));
  }
  void bytes(std::string_view value) {
    packer_.pack_bin(static_cast<std::uint32_t>(value.size()));
    packer_.pack_bin_body(value.data(), static_cast<std::uint32_t>(value.size()));
  }
  void bytes_beside(Buffer buffer) {
    packer_.pack_ext(0, static_cast<std::int8_t>(Extension::bytes));
    message_.buffers.push_back(std::move(buffer));
  }
  void array(Array::Form form, DType dtype, const Shape& shape, Buffer buffer) {
    packer_.pack_ext(2 + 8 * shape.size(), static_cast<std::int8_t>(Extension::array));
    const char head[2] = {static_cast<char>(form), static_cast<char>(dtype)};
    message_.body.append(head, sizeof(head));
    message_.body.append(reinterpret_cast<const char*>(shape.data()), 8 * shape.size());
    message_.buffers.push_back(std::move(buffer));
  }
  void begin_list(std::size_t size) { packer_.pack_array(static_cast<std::uint32_t>(size)); }
  void end_list() {}
  void begin_map(std::size_t size, bool /*plain*/) { packer_.pack_map(static_cast<std::uint32_t>(size)); }
  void end_map() {}

 private:
  struct Out {
    std::string& body;
    void write(const char* data, std::size_t size) {
      if (size == 1)  // as most heads have
        body.push_back(*data);
      else
        body.append(data, size);
    }
  };
  Message& message_;
  Out out_;
  msgpack::packer<Out> packer_;
};

}  // namespace miniray
