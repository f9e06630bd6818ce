// miniray.Pool's part of the core, for Python; miniray/pool.py has the rest.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "object_builder.hpp"
#include "pool_core.hpp"

namespace miniray::python {

void bind_pool(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<FunctionHandle>(module, "_TaskFunction").def_prop_ro("number", [](const FunctionHandle& self) {
    return self.function->number;
  });
  nb::class_<TermsHandle>(module, "_TaskTerms");
  nb::class_<TaskHandle>(module, "_Task")
      .def_prop_ro("tries", [](const TaskHandle& self) { return self.task.tries; })
      .def_prop_ro("retries", [](const TaskHandle& self) { return self.task.terms->retries; })
      .def("count_try", [](TaskHandle& self) { ++self.task.tries; })
      .def_prop_ro("function_name",
                   [](const TaskHandle& self) { return self.task.function ? self.task.function->name : std::string(); })
      .def_prop_ro(
          "is_map",
          [](const TaskHandle& self) { return self.task.call.head.verb == static_cast<std::uint8_t>(CallVerb::map); })
      .def(
          "call", [](const TaskHandle& self) { return decode_object(self.task.call); },
          nb::sig("def call(self) -> list[typing.Any]"), "The body of its call, as it was sent.");
  nb::class_<NeedsHandle>(module, "_TaskNeeds").def_prop_ro("has_tasks", [](const NeedsHandle& self) {
    return self.needs.use_count() > 1;
  });
  nb::class_<PoolCore::Corpse>(module, "_GoneWorker")
      .def("close", &PoolCore::Corpse::close, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "worker_object",
          [](PoolCore::Corpse& self) {
            const nb::object known = nb::find(self.gone.get());
            return known.is_valid() ? known : nb::none();
          },
          "The Python object, if it is one.");
  nb::class_<PoolCore>(module, "_Pool")
      .def(nb::init<>())
      .def("add_node", &PoolCore::add_node, "name"_a, "cpus"_a, "gpus"_a, "gpu_names"_a, "custom"_a)
      .def("start", &PoolCore::start, "initializer"_a.none(), "arguments"_a, "needs"_a.none(), "pack"_a)
      .def("add_worker", &PoolCore::add_worker, "node"_a, "worker"_a, "shares_clock"_a)
      .def("set_link", &PoolCore::set_link, "node"_a, "link"_a)
      .def("new_function", &PoolCore::new_function)
      .def("describe", &PoolCore::describe, "function"_a, "definition"_a, "by_value"_a, "slot"_a, "name"_a)
      .def("redefine", &PoolCore::redefine, "function"_a, "definition"_a, "needs"_a,
           nb::sig(
               "def redefine(self, function: _TaskFunction, definition: object, needs: list[_TaskFunction]) -> None"))
      .def_static("needs", &PoolCore::needs, "handles"_a,
                  nb::sig("def needs(handles: list[_TaskFunction]) -> _TaskNeeds"))
      .def("change_needs", &PoolCore::change_needs, "needs"_a, "handles"_a,
           nb::sig("def change_needs(self, needs: _TaskNeeds, handles: list[_TaskFunction]) -> None"))
      .def("terms", &PoolCore::terms, "cpus"_a, "gpus"_a, "custom"_a, "node"_a, "strategy"_a, "timeout_s"_a.none(),
           "retries"_a)
      .def("submit", &PoolCore::submit, "function"_a, "arguments"_a, "keywords"_a, "terms"_a, "memory"_a.none(),
           "owner"_a, "needs"_a.none(), "pack"_a)
      .def("submit_map", &PoolCore::submit_map, "function"_a, "items"_a, "star"_a, "terms"_a, "owner"_a,
           "needs"_a.none(), "pack"_a,
           nb::sig("def submit_map(self, function: _TaskFunction, items: list[typing.Any], star: bool, terms: "
                   "_TaskTerms, owner: object, needs: _TaskNeeds | None, pack: object) -> int"))
      .def("resubmit", &PoolCore::resubmit, "task"_a, "owner"_a)
      .def(
          "cancel", [](PoolCore& self, std::int64_t number, bool even) { self.cancel(number, even); }, "number"_a,
          "even_if_it_runs"_a)
      .def("interrupt", &PoolCore::interrupt, "number"_a)
      .def("cancel_waiting", &PoolCore::cancel_waiting)
      .def("cancel_all", &PoolCore::cancel_all)
      .def("break_down", &PoolCore::break_down, "why"_a)
      .def("give_up_node", &PoolCore::give_up_node, "node"_a, "why"_a)
      .def("refuse_tasks", &PoolCore::refuse_tasks)
      .def("is_finished", &PoolCore::is_finished)
      .def("wait_news", &PoolCore::wait_news,
           nb::sig(
               "def wait_news(self) -> tuple[list[typing.Any], list[typing.Any], list[typing.Any], list[int]] | None"))
      .def("status", &PoolCore::status, nb::sig("def status(self) -> dict[str, typing.Any]"))
      .def("nudge", &PoolCore::nudge)
      .def("is_running", &PoolCore::is_running, "number"_a)
      .def(
          "hurry", [](PoolCore& self, int how) { self.hurry(static_cast<Closing>(how)); }, "how"_a)
      .def("heed_hurry", &PoolCore::heed_hurry)
      .def("stop", &PoolCore::stop, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace miniray::python
