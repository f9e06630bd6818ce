// miniray.Handle: the argument of a work function.
#include "miniray/handle.hpp"

#include "conversation.hpp"
#include "work_function.hpp"

namespace miniray::python {

void bind_handle(nb::module_& module) {
  nb::class_<Handle> handle(module, "Handle", nb::dynamic_attr(), nb::is_weak_referenceable(),
                            "The worker's end of the conversation. A work function gets it as its argument.");
  handle.def(
      "__init__",
      [](Handle*, nb::args, nb::kwargs) {
        throw nb::type_error("a Handle cannot be made: MiniRay calls the work function with one, def work(handle)");
      },
      nb::sig("def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None"));
  bind_conversation(handle);
  module.def(
      "_run_spawned", [](nb::callable work) { return run_spawned(as_work_function(std::move(work))); },
      nb::sig("def _run_spawned(work: collections.abc.Callable[[Handle], typing.Any]) -> int"),
      "For miniray._spawned: runs the work function in a process that Worker(start=\"spawn\") has started.");
}

}  // namespace miniray::python
