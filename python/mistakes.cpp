// Gives calls with wrong arguments an error text as Python's own functions have. The text of nanobind lists C++
// signatures, and nanobind has no hook to change it. So each bound function is called through a function of ours, which
// replaces that error.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.hpp"
#include "interop.hpp"

namespace miniray::python {
namespace {

// The functions through which nanobind calls bound functions; it has a few, for different kinds of parameters. Constant
// after the import.
constexpr std::size_t entries_max = 16;
std::array<vectorcallfunc, entries_max> entries{};

nb::object take_error() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const nb::object type_held = nb::steal(type), traceback_held = nb::steal(traceback);
  return nb::steal(value);
}

void give_error(const nb::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

// Returns whether nanobind refused the arguments of this function. The TypeError may also come from its body.
bool is_refusal(nb::handle function, nb::handle error) {
  const nb::str text(error);
  const std::string expected =
      std::string(nb::cast<const char*>(nb::str(function.attr("__name__")))) + "(): incompatible function arguments";
  return std::string_view(text.c_str()).starts_with(expected);
}

void explain(PyObject* function, PyObject* const* arguments, std::size_t count_and_flags, PyObject* names) noexcept {
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) return;
  nb::object error = take_error();
  try {
    if (is_refusal(function, error)) {
      constexpr std::size_t flags = PY_VECTORCALL_ARGUMENTS_OFFSET | (PY_VECTORCALL_ARGUMENTS_OFFSET >> 1);
      const std::size_t count = count_and_flags & ~flags;  // nanobind has a flag of its own, next to Python's
      nb::list positional;
      for (std::size_t i = 0; i < count; ++i) positional.append(nb::handle(arguments[i]));
      nb::dict named;
      const Py_ssize_t named_count = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
      for (Py_ssize_t i = 0; i < named_count; ++i)
        named[nb::handle(PyTuple_GET_ITEM(names, i))] = nb::handle(arguments[count + static_cast<std::size_t>(i)]);
      error = attribute("miniray._mistakes", "refusal")(nb::handle(function), positional, named);
    }
  } catch (nb::python_error& raised) {
    raised.discard_as_unraisable("the explanation of a TypeError");
  }
  give_error(error);
}

template <std::size_t entry>
PyObject* call(PyObject* function, PyObject* const* arguments, std::size_t count_and_flags, PyObject* names) {
  PyObject* result = entries[entry](function, arguments, count_and_flags, names);
  if (result == nullptr) [[unlikely]]
    explain(function, arguments, count_and_flags, names);
  return result;
}

template <std::size_t... entry>
constexpr std::array<vectorcallfunc, entries_max> calls(std::index_sequence<entry...>) {
  return {call<entry>...};
}

void wrap(nb::handle function) {
  static constexpr auto ours = calls(std::make_index_sequence<entries_max>());
  char* const place = reinterpret_cast<char*>(function.ptr()) + Py_TYPE(function.ptr())->tp_vectorcall_offset;
  vectorcallfunc& theirs = *reinterpret_cast<vectorcallfunc*>(place);
  if (std::ranges::find(ours, theirs) != ours.end()) return;  // already wrapped: the function has two names
  std::size_t entry = 0;
  while (entry < entries_max && entries[entry] != nullptr && entries[entry] != theirs) ++entry;
  MINIRAY_CHECK(entry < entries_max, "nanobind has more ways to enter a function than we know", entry);
  entries[entry] = theirs;
  theirs = ours[entry];
}

bool is_bound_function(nb::handle object) {
  const std::string_view type = Py_TYPE(object.ptr())->tp_name;
  return type == "nanobind.nb_func" || type == "nanobind.nb_method";
}

void wrap_all_in(nb::handle owner) {
  for (const nb::handle value : nb::list(nb::object(owner.attr("__dict__")).attr("values")()))
    if (is_bound_function(value))
      wrap(value);
    else if (PyType_Check(value.ptr()))
      wrap_all_in(value);
}

}  // namespace

void refuse(const std::string& text, nb::handle value) {
  throw nb::type_error((text + nb::cast<std::string>(attribute("miniray._check", "shown")(value))).c_str());
}

void explain_mistakes(nb::module_& module) { wrap_all_in(module); }

}  // namespace miniray::python
