#include "object_builder.hpp"

#include <algorithm>
#include <array>

#include "miniray/channel.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"
#include "wire/json_reader.hpp"
#include "wire/msgpack_reader.hpp"

namespace miniray::python {
namespace {

nb::object checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

// Python returns the memory of destroyed numbers to the kernel in arenas of 1 MiB, and faulting it in again for the
// next long list costs as much as filling the list. A number that stays alive in each arena of the last long list
// prevents that.
class Anchors {
 public:
  void replace(PyObject* list) {
    const Py_ssize_t size = PyList_GET_SIZE(list);
    constexpr Py_ssize_t step = limits::list_anchor_step, span = step * limits::list_anchors_max;
    if (size < step) return;
    std::vector<nb::object> anchors;
    for (Py_ssize_t i = 0; i < std::min(size, span); i += step) anchors.push_back(nb::borrow(PyList_GET_ITEM(list, i)));
    anchors_.swap(anchors);
  }

 private:
  std::vector<nb::object> anchors_;
};

template <class T, class Make>
nb::object unpacked(const Array& array, Make make) {
  const std::span<const T> elements = array.elements<T>();
  nb::object list = checked(PyList_New(static_cast<Py_ssize_t>(elements.size())));
  for (std::size_t i = 0; i < elements.size(); ++i) {
    PyObject* element = make(elements[i]);
    if (element == nullptr) throw nb::python_error();
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), element);
  }
  static auto* const anchors = new Anchors;  // never destroyed, because the interpreter would be gone by then
  anchors->replace(list.ptr());
  return list;
}

// Makes numpy arrays. Looks numpy's class and dtypes up when the first array arrives.
class NumPy {
 public:
  static const NumPy& instance() {
    static const auto* const loaded = new NumPy;  // never destroyed, because the interpreter would be gone by then
    return *loaded;
  }
  [[nodiscard]] bool has(DType dtype) const { return dtypes_[static_cast<std::size_t>(dtype)].is_valid(); }
  [[nodiscard]] nb::object make(Array array) const {
    const nb::object& dtype = dtypes_[static_cast<std::size_t>(array.dtype())];
    const nb::object shape = checked(PyTuple_New(static_cast<Py_ssize_t>(array.shape().size())));
    for (std::size_t i = 0; i < array.shape().size(); ++i) {
      PyObject* const extent = PyLong_FromUnsignedLongLong(array.shape()[i]);
      if (extent == nullptr) throw nb::python_error();
      PyTuple_SET_ITEM(shape.ptr(), static_cast<Py_ssize_t>(i), extent);
    }
    return ndarray_(shape, dtype, nb::cast(std::move(array)));
  }

 private:
  NumPy() {
    const nb::object numpy = attribute("miniray._arrays", "_library")("numpy");
    if (numpy.is_none()) return;
    ndarray_ = numpy.attr("ndarray");
    for (std::size_t i = 0; i < dtypes_.size(); ++i)
      if (const auto dtype = static_cast<DType>(i); dtype != DType::bfloat16)
        dtypes_[i] = numpy.attr("dtype")(name_of(dtype));
  }

  nb::object ndarray_;
  std::array<nb::object, dtype_count> dtypes_;  // invalid where numpy has no such dtype
};

}  // namespace

void ObjectBuilder::bytes_beside() {
  const Buffer buffer = buffers_.take();
  add(nb::bytes(buffer.data, buffer.size));
}

void ObjectBuilder::array(Array::Form form, DType dtype, Shape shape) {
  Array array = buffers_.take_array(form, dtype, std::move(shape));
  if (form == Array::Form::descriptor) {
    ChannelOptions options;
    options.on_interrupt = check_signals;
    return add(nb::cast(Channel(Value(std::move(array)), std::move(options))));
  }
  if (form == Array::Form::array && NumPy::instance().has(dtype)) return add(NumPy::instance().make(std::move(array)));
  if (form != Array::Form::list) {
    add(attribute("miniray._arrays", "build")(nb::cast(std::move(array))));
    return;
  }
  if (array.shape().size() != 1) throw ProtocolError("a packed list in a message is not one-dimensional");
  if (dtype == DType::float64) return add(unpacked<double>(array, PyFloat_FromDouble));
  if (dtype == DType::int64)
    return add(unpacked<std::int64_t>(array, [](std::int64_t value) { return PyLong_FromLongLong(value); }));
  throw ProtocolError(std::string("a packed list in a message holds ") + name_of(dtype));
}

void ObjectBuilder::begin_list(std::size_t size) {
  // Every element takes at least one byte of the body, so all lists together have no more than that.
  const auto reserved = static_cast<Py_ssize_t>(size <= reservable_ ? size : 0);
  reservable_ -= static_cast<std::size_t>(reserved);
  open_.push_back({checked(PyList_New(reserved)), {}, 0, reserved, false});
}

void ObjectBuilder::begin_map(std::size_t, bool) { open_.push_back({checked(PyDict_New()), {}, 0, 0, true}); }

void ObjectBuilder::add(nb::object object) {
  if (!object.is_valid()) throw nb::python_error();
  if (open_.empty()) {
    result_ = std::move(object);
    return;
  }
  Open& open = open_.back();
  if (open.is_map && !open.key.is_valid()) {
    open.key = std::move(object);
  } else if (open.is_map) {
    if (PyDict_SetItem(open.container.ptr(), open.key.ptr(), object.ptr()) != 0) throw nb::python_error();
    open.key.reset();
  } else if (open.index < open.reserved) {
    PyList_SET_ITEM(open.container.ptr(), open.index++, object.release().ptr());
  } else if (PyList_Append(open.container.ptr(), object.ptr()) != 0) {
    throw nb::python_error();
  }
}

void ObjectBuilder::close() {
  nb::object container = std::move(open_.back().container);
  open_.pop_back();
  add(std::move(container));
}

nb::object ObjectBuilder::finish() {
  buffers_.require_all_taken();
  return std::move(result_);
}

nb::object decode_object(const Message& message) {
  ObjectBuilder builder(message);
  try {
    if (message.codec == Codec::json)
      read_json(message.body, builder);
    else
      read_msgpack(message.body, builder);
  } catch (nb::python_error& raised) {  // numpy or torch refuses what a peer may have made up, such as 64 dimensions
    if (!raised.matches(PyExc_ValueError) && !raised.matches(PyExc_TypeError) && !raised.matches(PyExc_RuntimeError))
      throw;
    throw ProtocolError(std::string("a message has a part that no object here can hold: ") + raised.what());
  }
  return builder.finish();
}

}  // namespace miniray::python
