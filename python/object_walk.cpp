#include "object_walk.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <unordered_set>

#include "miniray/channel.hpp"
#include "miniray/limits.hpp"
#include "wire/in_place_memory.hpp"
#include "wire/json_text.hpp"
#include "wire/json_writer.hpp"
#include "wire/msgpack_writer.hpp"
#include "wire/sink.hpp"

namespace miniray::python {
// The format is in the notation of the module struct.
bool parse_format(const Py_buffer& view, DType& dtype, bool& swapped) {
  std::string_view format = view.format == nullptr ? "B" : view.format;
  swapped = format.starts_with('>') || format.starts_with('!');
  if (!format.empty() && std::string_view("<>=@!").find(format[0]) != std::string_view::npos) format.remove_prefix(1);
  if (format == "?") return dtype = DType::boolean, true;
  if (format == "e") return dtype = DType::float16, true;
  if (format == "f") return dtype = DType::float32, true;
  if (format == "d") return dtype = DType::float64, true;
  if (format == "Zf") return dtype = DType::complex64, true;
  if (format == "Zd") return dtype = DType::complex128, true;
  if (format.size() != 1) return false;
  int log2_bytes = 0;
  while ((Py_ssize_t{1} << log2_bytes) < view.itemsize) ++log2_bytes;
  if (std::string_view("bhilqn").find(format[0]) != std::string_view::npos)
    return dtype = static_cast<DType>(static_cast<int>(DType::int8) + log2_bytes), true;
  if (std::string_view("BHILQN").find(format[0]) != std::string_view::npos)
    return dtype = static_cast<DType>(static_cast<int>(DType::uint8) + log2_bytes), true;
  return false;
}

namespace {

void throw_if(bool failed) {
  if (failed) throw nb::python_error();
}

std::string type_name(PyObject* object) {
  const std::string name = Py_TYPE(object)->tp_name;
  const std::size_t dot = name.rfind('.');
  const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
  const bool vowel = !last.empty() && std::string_view("aeiouAEIOU").find(last[0]) != std::string_view::npos;
  return (vowel ? "an " : "a ") + last;
}

std::string repr(PyObject* object) {
  nb::object text = nb::steal(PyObject_Repr(object));
  throw_if(!text.is_valid());
  return nb::cast<const char*>(nb::str(text));
}

// Thrown by an exact walk if an object would arrive as something else.
struct Inexact {};

enum class Fidelity : std::uint8_t { plain, exact };

template <class Writer, Fidelity fidelity = Fidelity::plain>
class ObjectWalk {
 public:
  ObjectWalk(Writer& writer, EncodedObject& encoded, Sharing sharing = Sharing::anywhere)
      : writer_(writer), encoded_(encoded), sharing_(sharing) {}

  void value(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (type == &PyUnicode_Type) return string(object);
    if (type == &PyLong_Type) return integer(object);
    if (type == &PyFloat_Type) return writer_.real(PyFloat_AS_DOUBLE(object));
    if (type == &PyDict_Type || type == &PyList_Type) {
      require_only_one(object);
      return type == &PyDict_Type ? map(object) : list(object);
    }
    if (object == Py_None) return writer_.null();
    if (object == Py_True || object == Py_False) return writer_.boolean(object == Py_True);
    if (type == &PyBytes_Type) return bytes(object);
    if constexpr (fidelity == Fidelity::exact) {
      const std::string_view name = type->tp_name;
      if (name != "numpy.ndarray" && name != "Tensor") throw Inexact{};
      require_only_one(object);
      if (plain_array(object)) return;
      if (!attribute("miniray._arrays", "is_exact")(nb::handle(object)).is(nb::handle(Py_True))) throw Inexact{};
      return foreign(object);
    }
    if (type == &PyTuple_Type) return sequence(object);
    rarer(object);
  }

 private:
  // Throws Inexact if an exact walk has met this object before. An object to which only its container and this walk
  // refer cannot be in a second place, and need not be remembered.
  void require_only_one(PyObject* object) {
    constexpr Py_ssize_t parent_and_walk = 2;
    if (fidelity == Fidelity::plain || Py_REFCNT(object) <= parent_and_walk || sharing_ == Sharing::ignored) return;
    const auto few = std::span(few_seen_).first(few_count_);
    if (std::ranges::find(few, object) != few.end()) throw Inexact{};
    if (few_count_ < few_seen_.size()) {
      few_seen_[few_count_++] = object;
      return;
    }
    if (!seen_.insert(object).second) throw Inexact{};
  }

  // Handles the less frequent types: subclasses, buffers and arrays.
  void rarer(PyObject* object) {
    if (PyUnicode_Check(object)) return string(object);
    if (PyLong_Check(object)) return integer(object);
    if (PyFloat_Check(object)) return writer_.real(PyFloat_AS_DOUBLE(object));
    if (PyDict_Check(object)) return map(object);
    if (PyList_Check(object) || PyTuple_Check(object)) return sequence(object);
    if (PyBytes_Check(object) || PyByteArray_Check(object) || PyMemoryView_Check(object)) return bytes(object);
    foreign(object);
  }

  void string(PyObject* object) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == nullptr) {
      PyErr_Clear();
      throw UnsendableAt("a str that is not valid Unicode (" + repr(object) + ")",
                         "send bytes; of a file name, os.fsencode(it)");
    }
    writer_.string({text, static_cast<std::size_t>(size)});
  }

  void integer(PyObject* object) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow == 0) return writer_.integer(value);
    const unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(object) : 0;
    if (overflow < 0 || PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      throw UnsendableAt("an int that does not fit 64 bits", "send it as a str", UnsendableAt::Fault::overflow);
    }
    writer_.unsigned_integer(large);
  }

  void bytes(PyObject* object) {
    Py_buffer view;
    throw_if(PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) != 0);
    const auto size = static_cast<std::size_t>(view.len);
    if (PyBuffer_IsContiguous(&view, 'C') == 0) {
      PyBuffer_Release(&view);
      nb::object copy = nb::steal(PyBytes_FromObject(object));
      throw_if(!copy.is_valid());
      return bytes(copy.ptr());
    }
    if (size <= limits::bytes_in_body_max) {
      writer_.bytes({static_cast<const char*>(view.buf), size});
      PyBuffer_Release(&view);
      return;
    }
    writer_.bytes_beside(encoded_.borrow(view));
  }

  void list(PyObject* object) {
    const Py_ssize_t size = PyList_GET_SIZE(object);
    if (static_cast<std::size_t>(size) >= limits::packed_list_elements_min) {
      PyObject* first = PyList_GET_ITEM(object, 0);
      if (PyFloat_CheckExact(first) && packed_floats(object, size)) return;
      if (PyLong_CheckExact(first) && packed_integers(object, size)) return;
    }
    sequence(object);
  }

  bool packed_floats(PyObject* list, Py_ssize_t size) {
    Buffer buffer = Buffer::allocate(static_cast<std::size_t>(size) * sizeof(double));
    auto* out = reinterpret_cast<double*>(buffer.data);
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* element = PyList_GET_ITEM(list, i);
      if (!PyFloat_CheckExact(element)) return false;
      out[i] = PyFloat_AS_DOUBLE(element);
    }
    writer_.array(Array::Form::list, DType::float64, {static_cast<std::uint64_t>(size)}, std::move(buffer));
    return true;
  }

  bool packed_integers(PyObject* list, Py_ssize_t size) {
    Buffer buffer = Buffer::allocate(static_cast<std::size_t>(size) * sizeof(std::int64_t));
    auto* out = reinterpret_cast<std::int64_t*>(buffer.data);
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* element = PyList_GET_ITEM(list, i);
      if (!PyLong_CheckExact(element)) return false;  // also for a bool, which must arrive as a bool
      int overflow = 0;
      out[i] = PyLong_AsLongLongAndOverflow(element, &overflow);
      if (overflow != 0) return false;
    }
    writer_.array(Array::Form::list, DType::int64, {static_cast<std::uint64_t>(size)}, std::move(buffer));
    return true;
  }

  void sequence(PyObject* object) {
    depth_.enter();
    const bool is_list = PyList_Check(object);
    const Py_ssize_t size = is_list ? PyList_GET_SIZE(object) : PyTuple_GET_SIZE(object);
    writer_.begin_list(static_cast<std::size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (is_list && PyList_GET_SIZE(object) != size) throw UnsendableAt("a list that changes while it is sent");
      const nb::object element = nb::borrow(is_list ? PyList_GET_ITEM(object, i) : PyTuple_GET_ITEM(object, i));
      try {
        value(element.ptr());
      } catch (UnsendableAt& error) {
        error.prepend("[" + std::to_string(i) + "]");
        throw;
      }
      if (sharing_ == Sharing::within_items && depth_.value() == items_depth) {
        few_count_ = 0;
        seen_.clear();
      }
    }
    writer_.end_list();
    depth_.leave();
  }

  static bool is_plain_map(PyObject* dict) {
    PyObject *key = nullptr, *element = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &element) != 0;) {
      if (!PyUnicode_Check(key)) return false;
      if (PyUnicode_GET_LENGTH(key) > 0 && PyUnicode_READ_CHAR(key, 0) == '$') return false;
    }
    return true;
  }

  void map(PyObject* dict) {
    depth_.enter();
    const Py_ssize_t size = PyDict_GET_SIZE(dict);
    writer_.begin_map(static_cast<std::size_t>(size), std::is_same_v<Writer, MsgpackWriter> || is_plain_map(dict));
    PyObject *next_key = nullptr, *next_element = nullptr;
    Py_ssize_t written = 0;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &next_key, &next_element) != 0; ++written) {
      const nb::object key = nb::borrow(next_key), element = nb::borrow(next_element);
      try {
        if (PyDict_GET_SIZE(dict) != size) throw UnsendableAt("a dict that changes while it is sent");
        map_key(key.ptr());
        value(element.ptr());
      } catch (UnsendableAt& error) {
        error.prepend("[" + key_text(key.ptr()) + "]");
        throw;
      }
    }
    if (written != size) throw UnsendableAt("a dict that changes while it is sent");
    writer_.end_map();
    depth_.leave();
  }

  void map_key(PyObject* key) {
    if (fidelity == Fidelity::exact) return value(key);
    if (PyUnicode_Check(key)) return string(key);
    if (PyLong_Check(key) || PyFloat_Check(key) || PyBytes_Check(key) || key == Py_None) return value(key);
    throw UnsendableAt(type_name(key) + " as a key", "keys are str, int, float, bool, bytes or None");
  }

  static std::string key_text(PyObject* key) {
    if (!PyUnicode_Check(key)) return repr(key);
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key, &size);
    if (text == nullptr) {
      PyErr_Clear();
      return repr(key);
    }
    std::string quoted;
    append_json_string(quoted, {text, static_cast<std::size_t>(size)});
    return quoted;
  }

  // Sends a contiguous numpy array through the buffer protocol, which is fast. Returns false for any other array.
  bool plain_array(PyObject* object) {
    if (std::string_view(Py_TYPE(object)->tp_name) != "numpy.ndarray") return false;
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      return false;
    }
    DType dtype{};
    bool swapped = false;
    if (!parse_format(view, dtype, swapped) || swapped || PyBuffer_IsContiguous(&view, 'C') == 0) {
      PyBuffer_Release(&view);
      return false;
    }
    writer_.array(Array::Form::array, dtype, Shape(view.shape, view.shape + view.ndim),
                  encoded_.borrow_array(view, object));
    return true;
  }

  // Handles objects of numpy, torch and other libraries, as miniray/_arrays.py describes them.
  void foreign(PyObject* object) {
    if (nb::isinstance<Array>(nb::handle(object))) return array(object, nullptr, Array::Form::array);
    if (nb::isinstance<Channel>(nb::handle(object))) return channel(object);
    if (plain_array(object)) return;
    const nb::object described = attribute("miniray._arrays", "describe")(nb::handle(object));
    const nb::tuple parts = nb::cast<nb::tuple>(described);
    const std::string_view what = nb::cast<const char*>(parts[0]);
    if (what == "value") return value(nb::object(parts[1]).ptr());
    if (what == "refuse") throw UnsendableAt(nb::cast<const char*>(parts[1]), nb::cast<const char*>(parts[2]));
    const nb::object memory = parts[1];
    DType dtype{};
    const bool named = !nb::object(parts[2]).is_none();
    if (named && !parse_dtype(nb::cast<const char*>(parts[2]), dtype))
      throw UnsendableAt("an array of " + std::string(nb::cast<const char*>(parts[2])));
    array(memory.ptr(), named ? &dtype : nullptr, what == "tensor" ? Array::Form::tensor : Array::Form::array);
  }

  void channel(PyObject* object) {
    const Array end = PassedDescriptor::as_array(encoded_.take_channel(nb::handle(object)));
    writer_.array(end.form(), end.dtype(), end.shape(), end.buffer());
  }

  void array(PyObject* object, const DType* named, Array::Form form) {
    Py_buffer view;
    throw_if(PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_STRIDES) != 0);
    DType dtype{};
    bool swapped = false;
    const bool known = parse_format(view, dtype, swapped);
    if (!known || swapped || PyBuffer_IsContiguous(&view, 'C') == 0) {
      const std::string format = view.format == nullptr ? "B" : view.format;
      PyBuffer_Release(&view);
      throw UnsendableAt("an array of elements \"" + format + "\"", "convert it to a numeric dtype");
    }
    if (named != nullptr) dtype = *named;
    Shape shape(view.shape, view.shape + view.ndim);
    Buffer buffer = form == Array::Form::tensor ? encoded_.borrow_tensor(view) : encoded_.borrow_array(view, object);
    writer_.array(form, dtype, shape, std::move(buffer));
  }

  Writer& writer_;
  static constexpr std::size_t items_depth = 2;
  EncodedObject& encoded_;
  Sharing sharing_;
  Depth depth_;
  // The objects that may occur in several places: the first few in an array, which is fast, the others in a set.
  std::array<PyObject*, 8> few_seen_;
  std::size_t few_count_ = 0;
  std::unordered_set<PyObject*> seen_;
};

// Makes a numpy array, and the arrays that it is a view of, refuse writes.
void make_read_only(nb::object array) {
  while (array.is_valid() && std::string_view(Py_TYPE(array.ptr())->tp_name) == "numpy.ndarray") {
    const nb::object flags = nb::steal(PyObject_GetAttrString(array.ptr(), "flags"));
    if (!flags.is_valid() || PyObject_SetAttrString(flags.ptr(), "writeable", Py_False) != 0) break;
    array = nb::steal(PyObject_GetAttrString(array.ptr(), "base"));
  }
  PyErr_Clear();
}

}  // namespace

EncodedObject::EncodedObject(nb::handle object, Codec codec) {
  message_.codec = codec;
  message_.body.reserve(limits::body_bytes_expected);
  try {
    if (codec == Codec::json) {
      JsonWriter writer(message_);
      ObjectWalk<JsonWriter>(writer, *this).value(object.ptr());
    } else {
      MsgpackWriter writer(message_);
      ObjectWalk<MsgpackWriter>(writer, *this).value(object.ptr());
    }
  } catch (const UnsendableAt& error) {
    release_views();
    PyErr_SetString(error.fault() == UnsendableAt::Fault::overflow ? PyExc_OverflowError : PyExc_TypeError,
                    error.text().c_str());
    throw nb::python_error();
  } catch (...) {
    release_views();
    throw;
  }
}

std::unique_ptr<EncodedObject> EncodedObject::exactly(nb::handle object, Sharing sharing) {
  std::unique_ptr<EncodedObject> encoded(new EncodedObject);
  encoded->message_.body.reserve(limits::body_bytes_expected);
  MsgpackWriter writer(encoded->message_);
  try {
    ObjectWalk<MsgpackWriter, Fidelity::exact>(writer, *encoded, sharing).value(object.ptr());
  } catch (const Inexact&) {
    return nullptr;
  } catch (const UnsendableAt&) {
    return nullptr;
  }
  return encoded;
}

EncodedObject::~EncodedObject() { release_views(); }

// Whoever destroys this object has sent the message, or has not; only now it is known which.
void EncodedObject::release_views() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
  views_.clear();
  for (const auto& [array, memory] : in_place_)
    if (memory->frozen()) make_read_only(array);
  in_place_.clear();
  for (auto& [channel, end] : channels_) nb::cast<Channel&>(channel).restore_end(*end);
  channels_.clear();
}

Message EncodedObject::detach() && {
  for (Buffer& buffer : message_.buffers) {
    if (PassedDescriptor::in(buffer) != nullptr)
      throw nb::type_error(
          "cannot send a channel here: this message may be sent later, or more than once. Use worker.send()");
    if (buffer.owner) continue;
    Buffer copy = Buffer::allocate(buffer.size);
    std::memcpy(copy.data, buffer.data, buffer.size);
    buffer = std::move(copy);
  }
  release_views();
  return std::move(message_);
}

Buffer EncodedObject::borrow_array(const Py_buffer& view, PyObject* object) {
  Buffer buffer = borrow(view);
  InPlaceMemory* const memory = InPlaceMemory::find(buffer.bytes());
  if (memory == nullptr) return buffer;
  if (memory->made_here()) in_place_.emplace_back(nb::borrow(object), memory);
  buffer.passed = memory;
  return buffer;
}

// Memory that was made here is sent without a copy only if the array can be made read-only. A tensor cannot.
Buffer EncodedObject::borrow_tensor(const Py_buffer& view) {
  Buffer buffer = borrow(view);
  InPlaceMemory* const memory = InPlaceMemory::find(buffer.bytes());
  if (memory != nullptr && !memory->made_here()) buffer.passed = memory;
  return buffer;
}

std::shared_ptr<PassedDescriptor> EncodedObject::take_channel(nb::handle channel) {
  std::shared_ptr<PassedDescriptor> end = nb::cast<Channel&>(channel).release_end();
  channels_.emplace_back(nb::borrow(channel), end);
  return end;
}

Buffer EncodedObject::borrow(const Py_buffer& view) {
  views_.push_back(view);
  return Buffer::borrow(view.buf, static_cast<std::size_t>(view.len));
}

}  // namespace miniray::python
