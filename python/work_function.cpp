#include "work_function.hpp"

#include <nanobind/stl/string.h>

#include <memory>

#include "base/crash.hpp"
#include "calls.hpp"
#include "worker/work_function.hpp"

namespace miniray::python {

namespace {

// Looked up before a fork: every page of the interpreter that a child touches is copied for it.
struct Callables {
  nb::callable work;
  nb::object disable_faulthandler = attribute("faulthandler", "disable");
  nb::object run = attribute("miniray._work", "run");
};

}  // namespace

WorkFunction as_work_function(nb::callable callable) {
  // A server may let go of it where the GIL is released.
  const std::shared_ptr<Callables> callables(new Callables{std::move(callable)}, [](Callables* held) {
    const nb::gil_scoped_acquire gil;
    delete held;
  });
  return [callables](Handle& handle) {
    // A fault handler that the parent had enabled would stay with its file, and undo ours when it goes. It goes first;
    // then ours, which prints the C++ stack, and on top of it Python's, which prints its own and passes the signal on.
    callables->disable_faulthandler();
    write_crash_stacks_to(crash_descriptor());
    answer_calls(handle);
    // miniray/_work.py calls the function and says how it ended: None, an exit code, or what it raised.
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
