#include "work_function.hpp"

#include <nanobind/stl/string.h>

#include <memory>

#include "base/crash.hpp"
#include "calls.hpp"
#include "worker/work_function.hpp"

namespace miniray::python {

namespace {

// Looked up before a fork, because the kernel copies every page of the interpreter that a child touches.
struct Callables {
  nb::callable work;
  nb::object disable_faulthandler = attribute("faulthandler", "disable");
  nb::object run = attribute("miniray._work", "run");
};

}  // namespace

WorkFunction as_work_function(nb::callable callable) {
  // A server may destroy the function without the GIL, so the deleter takes it.
  const std::shared_ptr<Callables> callables(new Callables{std::move(callable)}, [](Callables* held) {
    const nb::gil_scoped_acquire gil;
    delete held;
  });
  return [callables](Handle& handle) {
    // A faulthandler that the parent had enabled would write to the parent's file, and would remove our handler when it
    // is disabled. So it is disabled first. Then comes our handler, which writes the C++ stack. miniray/_work.py
    // enables Python's again on top of it: that one writes the Python stack and passes the signal on to ours.
    callables->disable_faulthandler();
    write_crash_stacks_to(crash_descriptor());
    answer_calls(handle);
    // run() calls the function and returns how it ended: None, an exit code, or the parts of an exception.
    const nb::object ending =
        callables->run(callables->work, nb::cast(handle, nb::rv_policy::reference), crash_descriptor());
    if (ending.is_none()) return;
    if (nb::isinstance<nb::int_>(ending)) throw WorkExit{nb::cast<int>(ending)};
    const nb::tuple raised = nb::cast<nb::tuple>(ending);
    throw WorkFailure{nb::cast<std::string>(raised[0]), nb::cast<std::string>(raised[1]),
                      nb::cast<std::string>(raised[2])};
  };
}

}  // namespace miniray::python
