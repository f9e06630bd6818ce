// miniray.Array: what a receiver without numpy gets for an array. With numpy, it owns the memory of the numpy array.
#include "miniray/array.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>

#include "interop.hpp"
#include "wire/in_place_memory.hpp"

namespace miniray::python {
namespace {

// Formats of the buffer protocol, in the order of DType. It has none for bfloat16, whose 16 bits appear as "H".
constexpr std::array<const char*, dtype_count> formats{"?", "b", "h", "i", "q", "B",  "H", "I",
                                                       "Q", "e", "H", "f", "d", "Zf", "Zd"};
constexpr std::array<const char*, 4> forms{"array", "tensor", "list", "descriptor"};

struct Geometry {
  std::vector<Py_ssize_t> shape, strides;
};

int get_buffer(PyObject* exporter, Py_buffer* view, int flags) {
  const Array& array = *nb::inst_ptr<Array>(nb::handle(exporter));
  const Passed* const passed = array.buffer().passed;
  const bool frozen = passed != nullptr && passed->kind() == Passed::Kind::memory &&
                      static_cast<const InPlaceMemory*>(passed)->frozen();
  if (frozen && (flags & PyBUF_WRITABLE) != 0) {
    PyErr_SetString(PyExc_BufferError,
                    "the array was sent, and the receiver uses the same memory; make another one by miniray.empty()");
    view->obj = nullptr;
    return -1;
  }
  auto geometry = std::make_unique<Geometry>();
  const std::size_t dimensions = array.shape().size();
  geometry->shape.resize(dimensions);
  geometry->strides.resize(dimensions);
  auto stride = static_cast<Py_ssize_t>(item_bytes(array.dtype()));
  for (std::size_t i = dimensions; i-- > 0;) {
    geometry->shape[i] = static_cast<Py_ssize_t>(array.shape()[i]);
    geometry->strides[i] = stride;
    stride *= std::max<Py_ssize_t>(geometry->shape[i], 1);
  }
  view->obj = Py_NewRef(exporter);
  view->buf = array.buffer().data;
  view->len = static_cast<Py_ssize_t>(array.buffer().size);
  view->itemsize = static_cast<Py_ssize_t>(item_bytes(array.dtype()));
  view->readonly = frozen ? 1 : 0;
  view->ndim = static_cast<int>(dimensions);
  view->format =
      (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(formats[static_cast<std::size_t>(array.dtype())]) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? geometry->shape.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? geometry->strides.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = geometry.release();
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) { delete static_cast<Geometry*>(view->internal); }

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                       {0, nullptr}};

nb::tuple shape_of(const Array& array) {
  nb::list extents;
  for (const std::uint64_t extent : array.shape()) extents.append(extent);
  return nb::tuple(extents);
}

std::string repr(const Array& array) {
  std::string text = "miniray.Array(" + std::string(name_of(array.dtype())) + ", shape=(";
  for (const std::uint64_t extent : array.shape()) text += std::to_string(extent) + ",";
  return text + "))";
}

}  // namespace

void bind_array(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Array>(
      module, "Array", nb::type_slots(slots),
      "A received array: dtype, shape, and contiguous bytes that memoryview() and numpy read without a copy. "
      "Receivers that have numpy or torch get arrays of these libraries instead.")
      .def(
          "__init__",
          [](Array*, nb::args, nb::kwargs) {
            throw nb::type_error(
                "an Array cannot be made: it is what arrives where numpy is missing; send a numpy array or a tensor");
          },
          nb::sig("def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None"))
      .def_prop_ro("dtype", [](const Array& array) { return name_of(array.dtype()); })
      .def_prop_ro("shape", shape_of, nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("form", [](const Array& array) { return forms[static_cast<std::size_t>(array.form())]; })
      .def_prop_ro("nbytes", [](const Array& array) { return array.buffer().size; })
      .def("__len__", [](const Array& array) { return array.shape().empty() ? 0 : array.shape()[0]; })
      .def("__repr__", repr);
  module.def(
      "_make_array",
      [](const std::string& dtype_name, const std::vector<std::uint64_t>& shape) {
        DType dtype{};
        if (!parse_dtype(dtype_name, dtype)) throw nb::type_error(("there are no arrays of " + dtype_name).c_str());
        return make_array(dtype, shape);
      },
      "dtype"_a, "shape"_a, nb::sig("def _make_array(dtype: str, shape: collections.abc.Sequence[int]) -> Array"));
  module.def("_drop_unused_memory", &InPlaceMemory::drop_unused,
             "For tests: return the memory that is kept for the next arrays of miniray.empty() to the system.");
}

}  // namespace miniray::python
