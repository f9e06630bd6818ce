// Decodes a message directly into Python objects, without a Value in between.
#pragma once

#include <vector>

#include "interop.hpp"
#include "miniray/message.hpp"
#include "wire/sink.hpp"

namespace miniray::python {

/// Returns the object that a message holds. Throws ProtocolError if the message is not well formed.
nb::object decode_object(const Message& message);

/// A sink (see wire/sink.hpp) that builds Python objects.
class ObjectBuilder {
 public:
  explicit ObjectBuilder(const Message& message) : buffers_(message.buffers), reservable_(message.body.size()) {}

  void null() { add(nb::none()); }
  void boolean(bool value) { add(nb::bool_(value)); }
  void integer(std::int64_t value) { add(nb::steal(PyLong_FromLongLong(value))); }
  void unsigned_integer(std::uint64_t value) { add(nb::steal(PyLong_FromUnsignedLongLong(value))); }
  void real(double value) { add(nb::steal(PyFloat_FromDouble(value))); }
  void string(std::string_view value) {
    add(nb::steal(PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), nullptr)));
  }
  void bytes(std::string_view value) { add(nb::bytes(value.data(), value.size())); }
  void bytes_beside();
  void array(Array::Form form, DType dtype, Shape shape);
  void begin_list(std::size_t size);
  void end_list() { close(); }
  void begin_map(std::size_t, bool);
  void end_map() { close(); }

  [[nodiscard]] nb::object finish();

 private:
  struct Open {
    nb::object container, key;
    Py_ssize_t index, reserved;  // for lists: the first `reserved` elements are set, the others are appended
    bool is_map;
  };
  void add(nb::object object);
  void close();

  BufferQueue buffers_;
  std::size_t reservable_;  // for how many more elements of lists memory is reserved before they have come
  std::vector<Open> open_;
  nb::object result_;
};

}  // namespace miniray::python
