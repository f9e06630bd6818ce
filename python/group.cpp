// Bindings of Group and create_group, for miniray/group.py.
#include "miniray/group.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "interop.hpp"
#include "object_walk.hpp"

namespace miniray::python {
namespace {

// The elements of an object with contiguous memory, such as a numpy array, as long as this object lives.
class Elements {
 public:
  enum class Access : std::uint8_t { read, write };
  Elements(nb::handle object, Access access) {
    const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (access == Access::write ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
    bool swapped = false;
    if (parse_format(view_, dtype_, swapped) && !swapped) return;
    const std::string format = view_.format == nullptr ? "B" : view_.format;
    PyBuffer_Release(&view_);
    throw nb::type_error(
        ("a group cannot handle elements \"" + format + "\"; convert them to a numeric dtype").c_str());
  }
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;
  ~Elements() { PyBuffer_Release(&view_); }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
  DType dtype_ = DType::uint8;
};

void require_same_dtype(const Elements& one, const Elements& other) {
  if (one.dtype() != other.dtype())
    throw nb::type_error((std::string("one array has elements of ") + name_of(one.dtype()) + ", and the other of " +
                          name_of(other.dtype()) + "; give arrays of the same dtype")
                             .c_str());
}

// Calls `call` with all elements and with those of this rank's part. Only the root needs `all`.
template <class Call>
void with_parts(nb::handle all, Elements::Access all_access, nb::handle part, Elements::Access part_access, Call call) {
  const Elements mine(part, part_access);
  if (all.is_none()) {
    const nb::gil_scoped_release released;
    return call(std::span<std::byte>(), mine);
  }
  const Elements everything(all, all_access);
  require_same_dtype(everything, mine);
  const nb::gil_scoped_release released;
  call(everything.bytes(), mine);
}

}  // namespace

void bind_group(nb::module_& module) {
  using namespace nb::literals;
  using Access = Elements::Access;
  nb::class_<Group>(module, "Group")
      .def(
          "__init__",
          [](Group* self, Handle& handle) {
            const nb::gil_scoped_release released;
            new (self) Group(Group::join(handle, check_signals));
          },
          "handle"_a)
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def("barrier", &Group::barrier, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "all_reduce",
          [](Group& self, nb::handle array, const std::string& op) {
            const Elements elements(array, Access::write);
            const ReduceOp parsed = parse_reduce_op(op);
            const nb::gil_scoped_release released;
            self.all_reduce_bytes(elements.bytes(), elements.dtype(), parsed);
          },
          "array"_a, "op"_a)
      .def(
          "reduce",
          [](Group& self, nb::handle array, const std::string& op, int root) {
            const Elements elements(array, self.rank() == root ? Access::write : Access::read);
            const ReduceOp parsed = parse_reduce_op(op);
            const nb::gil_scoped_release released;
            self.reduce_bytes(elements.bytes(), elements.dtype(), parsed, root);
          },
          "array"_a, "op"_a, "root"_a)
      .def(
          "broadcast",
          [](Group& self, nb::handle array, int root) {
            const Elements elements(array, self.rank() == root ? Access::read : Access::write);
            const nb::gil_scoped_release released;
            self.broadcast_bytes(elements.bytes(), elements.dtype(), root);
          },
          "array"_a, "root"_a)
      .def(
          "scatter",
          [](Group& self, nb::handle all, nb::handle part, int root) {
            with_parts(all, Access::read, part, Access::write, [&](std::span<std::byte> from, const Elements& mine) {
              self.scatter_bytes(from, mine.bytes(), mine.dtype(), root);
            });
          },
          "all"_a.none(), "part"_a, "root"_a)
      .def(
          "gather",
          [](Group& self, nb::handle part, nb::handle all, int root) {
            with_parts(all, Access::write, part, Access::read, [&](std::span<std::byte> to, const Elements& mine) {
              self.gather_bytes(mine.bytes(), to, mine.dtype(), root);
            });
          },
          "part"_a, "all"_a.none(), "root"_a)
      .def(
          "reduce_scatter",
          [](Group& self, nb::handle all, nb::handle part, const std::string& op) {
            const ReduceOp parsed = parse_reduce_op(op);
            with_parts(all, Access::read, part, Access::write, [&](std::span<std::byte> from, const Elements& mine) {
              self.reduce_scatter_bytes(from, mine.bytes(), mine.dtype(), parsed);
            });
          },
          "all"_a, "part"_a, "op"_a);
  module.def(
      "_create_group",
      [](const std::vector<Worker*>& workers, double timeout, int first_port, int last_port, double unreachable,
         std::optional<bool> encrypt) {
        const nb::gil_scoped_release released;
        create_group(workers, {timeout, first_port, last_port, unreachable, encrypt});
      },
      "workers"_a, "timeout"_a, "first_port"_a, "last_port"_a, "unreachable"_a, "encrypt"_a.none(),
      nb::sig("def _create_group(workers: collections.abc.Sequence[typing.Any], timeout: float, first_port: int, "
              "last_port: int, unreachable: float, encrypt: bool | None) -> None"));
}

}  // namespace miniray::python
