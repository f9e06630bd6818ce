// Supervision: what miniray/supervision.py and miniray/_supervised.py build on. The decisions are the core's.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
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

bool is_error(const nb::python_error& raised, const char* name) {
  return raised.matches(attribute("miniray.errors", name));
}

// Returns whether a worker died or its work function raised an exception. A call that raised one is told by a
// WorkerError too, but does not end the worker.
bool is_end_of_worker(const nb::python_error& raised) {
  if (is_error(raised, "WorkerError")) return !nb::cast<bool>(raised.value().attr("_of_call"));
  return is_error(raised, "WorkerDied");
}

std::string text_of(nb::python_error& raised) {
  const auto text = nb::cast<nb::bytes>(nb::str(raised.value()).attr("encode")("utf-8", "backslashreplace"));
  return {text.c_str(), text.size()};
}

// The functions of a supervised worker are kept with its Python object, where the garbage collector sees them.
Worker replace_process(Worker& dead) {
  const nb::gil_scoped_acquire gil;
  try {
    const nb::object fresh = attribute("miniray._supervised", "replace")(nb::find(dead));
    return std::move(nb::cast<Worker&>(fresh));
  } catch (nb::python_error& raised) {
    const bool may_be_repeated = is_error(raised, "MiniRayError") || raised.matches(PyExc_OSError);
    if (is_error(raised, "UsageError") || !may_be_repeated) throw;
    throw Supervision::AttemptFailed(text_of(raised));
  }
}

void prepare_process(Worker& fresh) {
  const nb::gil_scoped_acquire gil;
  try {
    attribute("miniray._supervised", "prepare")(nb::find(fresh));
  } catch (nb::python_error& raised) {
    if (!is_end_of_worker(raised)) throw;
    throw Supervision::AttemptFailed(text_of(raised));
  }
}

std::shared_ptr<Supervision> supervise_object(Worker& worker, const PolicyFields& policy,
                                              const std::shared_ptr<EventLog>& events, const std::string& node) {
  SupervisionOptions options{policy_of(policy), prepare_process, events, node, check_signals, {}};
  options.on_event = [log = events.get()] {
    const nb::gil_scoped_acquire gil;
    nb::find(*log).attr("_log_new")();
  };
  const auto supervision = std::make_shared<Supervision>(replace_process, std::move(options));
  Supervision::begin(worker, supervision);
  return supervision;
}

// A failure of a rank that Python code has raised, for the core to look at on its way.
struct RaisedInPython : GroupError {
  RaisedInPython(nb::python_error& failure, std::exception_ptr thrown)
      : GroupError(text_of(failure), nb::cast<std::optional<int>>(nb::getattr(failure.value(), "rank", nb::none()))),
        raised(std::move(thrown)) {}
  std::exception_ptr raised;
};

template <class... Arguments>
nb::object call_step(const nb::callable& step, Arguments... arguments) {
  try {
    return step(arguments...);
  } catch (nb::python_error& raised) {
    if (!is_end_of_worker(raised) && !is_error(raised, "GroupError") && !is_error(raised, "ClusterError")) throw;
    throw RaisedInPython(raised, std::current_exception());
  }
}

// What the functions raise arrives as it is: the same object, whose text says in the end why the policy refused.
nb::object run_python_group(const nb::callable& begin, const nb::callable& drive, const nb::callable& end,
                            const PolicyFields& policy, EventLog& events, bool progress) {
  nb::object result;
  GroupSteps steps;
  steps.begin = [&](int attempt) {
    const nb::gil_scoped_acquire gil;
    return nb::cast<std::size_t>(call_step(begin, attempt));
  };
  steps.drive = [&](int) {
    const nb::gil_scoped_acquire gil;
    result = call_step(drive);
  };
  steps.end = [&](Closing how) {
    const nb::gil_scoped_acquire gil;
    end(static_cast<int>(how));
  };
  try {
    const nb::gil_scoped_release released;
    run_attempts(steps, policy_of(policy), events, progress, check_signals);
  } catch (const RaisedInPython& failed) {
    try {
      std::rethrow_exception(failed.raised);
    } catch (nb::python_error& raised) {
      if (text_of(raised) != failed.what()) nb::borrow(raised.value()).attr("args") = nb::make_tuple(failed.what());
      throw;
    }
  }
  return result;
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
  module.def("_check_policy", [](const PolicyFields& fields) { (void)RestartBudget(policy_of(fields)); }, "policy"_a);
  nb::class_<Supervision>(module, "_Supervision")
      .def_prop_ro("restarts", &Supervision::restarts)
      .def_prop_ro("pending", &Supervision::pending)
      .def_prop_ro("recovered", &Supervision::recovered)
      .def("pause_before_attempt", &Supervision::pause_before_attempt, "worker"_a)
      .def("attempt", &Supervision::attempt, "worker"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("tell", &Supervision::tell, "worker"_a)
      .def("recover", &Supervision::recover, "worker"_a, nb::call_guard<nb::gil_scoped_release>());
  module.def("_supervise", supervise_object, "worker"_a, "policy"_a, "events"_a, "node"_a);
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
      "_run_group", run_python_group, "begin"_a, "drive"_a, "end"_a, "policy"_a, "events"_a, "progress"_a,
      nb::sig("def _run_group(begin: collections.abc.Callable[[int], int], drive: collections.abc.Callable[[], "
              "typing.Any], end: collections.abc.Callable[[int], None], policy: tuple[int, float, float, float], "
              "events: EventLog, progress: bool) -> typing.Any"));
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
