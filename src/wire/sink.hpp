// The wire layer consists of sources, which produce events, and sinks, which consume them. Any source can drive any
// sink.
//
//   sources: walk(Value), read_msgpack(body), read_json(body), the Python package's walk(object)
//   sinks:   MsgpackWriter, JsonWriter, ValueBuilder, TextWriter, the Python package's ObjectBuilder
//
// A sink has these members. Containers nest, and a map's keys and values alternate. A source that walks an object
// passes a buffer with each array event, which a writer appends to the message. A source that reads a body passes none:
// a builder takes the next buffer of the message.
//
//   null()  boolean(bool)  integer(int64)  unsigned_integer(uint64)  real(double)  string(string_view)
//   bytes(string_view)               bytes in the body
//   begin_list(size)  end_list()     begin_map(size, plain)  end_map()
//   writers:  array(form, dtype, shape, buffer)
//   builders: array(form, dtype, shape)   bytes_beside()
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "miniray/array.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"
#include "wire/passed.hpp"

namespace miniray {

/// Thrown while a source walks a value that cannot be sent. Each level prepends its own step, so that the text names
/// the place inside the value.
class UnsendableAt {
 public:
  enum class Fault : std::uint8_t { type, overflow };
  explicit UnsendableAt(std::string what, std::string remedy = {}, Fault fault = Fault::type)
      : what_(std::move(what)), remedy_(std::move(remedy)), fault_(fault) {}

  void prepend(const std::string& step) { place_ = step + place_; }
  [[nodiscard]] Fault fault() const { return fault_; }
  [[nodiscard]] std::string text() const {
    return "cannot send " + what_ + " at msg" + place_ + (remedy_.empty() ? "" : ": " + remedy_);
  }

 private:
  std::string what_, remedy_, place_;
  Fault fault_;
};

/// Counts how deep containers are nested, and throws above the limit.
class Depth {
 public:
  void enter() {
    if (++depth_ > limits::depth_max)
      throw UnsendableAt("a message nested deeper than " + std::to_string(limits::depth_max) + " levels",
                         "does it contain itself?");
  }
  void leave() { --depth_; }
  [[nodiscard]] std::size_t value() const { return depth_; }

 private:
  std::size_t depth_ = 0;
};

/// The buffers beside a body. The n-th reference in the body takes the n-th buffer. Input is untrusted.
class BufferQueue {
 public:
  explicit BufferQueue(const std::vector<Buffer>& buffers) : buffers_(buffers) {}

  Buffer take() {
    if (next_ == buffers_.size()) throw ProtocolError("a message refers to more buffers than came with it");
    return buffers_[next_++];
  }
  Array take_array(Array::Form form, DType dtype, Shape shape) {
    // A zero among the extents makes the array empty, and the others must make sense all the same.
    std::uint64_t bytes = item_bytes(dtype);
    for (const std::uint64_t extent : shape)
      if (extent > static_cast<std::uint64_t>(INT64_MAX) ||
          __builtin_mul_overflow(bytes, std::max<std::uint64_t>(extent, 1), &bytes) ||
          bytes > static_cast<std::uint64_t>(INT64_MAX))
        throw ProtocolError("an array in a message has an impossible shape");
    Buffer buffer = take();
    if ((form == Array::Form::descriptor) != (PassedDescriptor::in(buffer) != nullptr))
      throw ProtocolError("a message refers to a descriptor that did not come with it, or the other way round");
    try {
      return {dtype, std::move(shape), std::move(buffer), form};
    } catch (const UsageError& error) {
      throw ProtocolError(std::string("an array in a message does not fit its buffer: ") + error.what());
    }
  }
  void require_all_taken() const {
    if (next_ != buffers_.size()) throw ProtocolError("a message came with buffers that it does not refer to");
  }

 private:
  const std::vector<Buffer>& buffers_;
  std::size_t next_ = 0;
};

}  // namespace miniray
