// Supervision: what miniray/supervision.py and miniray/_supervised.py build on. The decisions are the core's.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "interop.hpp"
#include "miniray/event_log.hpp"
#include "miniray/group_run.hpp"
#include "miniray/restart_policy.hpp"
#include "miniray/supervised_worker.hpp"
#include "object_builder.hpp"
#include "object_walk.hpp"
#include "ready_worker.hpp"

namespace miniray::python {
namespace {

nb::list to_tuples(const std::vector<Event>& events) {
  nb::list made;
  for (const Event& event : events)
    made.append(nb::make_tuple(event.time_s, event.kind, event.node, event.worker, event.text,
                               decode_object(encode(event.details.is_null() ? Value(Map{}) : event.details))));
  return made;
}

}  // namespace

RestartPolicy policy_of(const PolicyFields& fields) {
  const auto& [max_restarts, window_s, backoff_s, backoff_max_s] = fields;
  return {max_restarts, window_s, backoff_s, backoff_max_s};
}

void bind_supervision(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<EventLog>(module, "EventLog")
      .def(nb::init<std::size_t>(), "events_max"_a)
      .def(
          "_add",
          [](EventLog& self, const std::string& kind, const std::string& node, const std::string& worker,
             const std::string& text, nb::handle details) {
            const EncodedObject encoded(details, Codec::msgpack);
            const Value value = decode(encoded.message());
            const nb::gil_scoped_release released;
            self.add({.kind = kind, .node = node, .worker = worker, .text = text, .details = value});
          },
          "kind"_a, "node"_a, "worker"_a, "text"_a, "details"_a)
      .def(
          "_events",
          [](EventLog& self, const std::optional<std::string>& kind, std::optional<double> since) {
            return to_tuples(self.events(kind, since));
          },
          "kind"_a.none(), "since"_a.none(),
          nb::sig("def _events(self, kind: str | None, since: float | None) -> list[tuple[float, str, str, str, str, "
                  "typing.Any]]"))
      .def("_write_to", &EventLog::write_to, "path"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("__len__", &EventLog::size)
      .def_prop_ro("forgotten", &EventLog::forgotten, "How many events were more than the log holds.");
  nb::class_<RestartBudget>(module, "_RestartBudget")
      .def(
          "__init__",
          [](RestartBudget* self, const PolicyFields& fields) { new (self) RestartBudget(policy_of(fields)); },
          "policy"_a, nb::sig("def __init__(self, policy: tuple[int, float, float, float]) -> None"))
      .def("take", &RestartBudget::take, "now_s"_a)
      .def("describe", &RestartBudget::describe)
      .def("refusal", &RestartBudget::refusal);
  module.def(
      "_replace_in_cluster",
      [](Cluster& cluster, Worker& worker, std::size_t home, bool other_nodes, EventLog& events) {
        std::vector<Worker> made;
        {
          const nb::gil_scoped_release released;
          made.push_back(replace_in_cluster(cluster, worker, home, other_nodes, events));
        }
        return wrap_ready(std::move(made));
      },
      "cluster"_a, "worker"_a, "home"_a, "other_nodes"_a, "events"_a,
      nb::sig("def _replace_in_cluster(cluster: Cluster, worker: typing.Any, home: int, other_nodes: bool, events: "
              "EventLog) -> list[_ReadyWorker]"));
  module.def(
      "_connect_again",
      [](Cluster& cluster, const std::string& work_fn, std::optional<int> num_workers,
         std::optional<double> gpus_per_worker, const std::vector<int>& gpus, bool pin_cpus,
         const std::vector<std::size_t>& nodes, bool other_nodes, EventLog& events) {
        std::vector<Worker> workers;
        {
          const nb::gil_scoped_release released;
          workers = connect_again(cluster, work_fn, {num_workers, gpus_per_worker, gpus, pin_cpus, nodes}, other_nodes,
                                  events);
        }
        return wrap_ready(std::move(workers));
      },
      "cluster"_a, "work_fn"_a, "num_workers"_a.none(), "gpus_per_worker"_a.none(), "gpus"_a, "pin_cpus"_a, "nodes"_a,
      "other_nodes"_a, "events"_a,
      nb::sig("def _connect_again(cluster: Cluster, work_fn: str, num_workers: int | None, gpus_per_worker: float | "
              "None, gpus: collections.abc.Sequence[int], pin_cpus: bool, nodes: collections.abc.Sequence[int], "
              "other_nodes: bool, events: EventLog) -> list[_ReadyWorker]"));
}

}  // namespace miniray::python
