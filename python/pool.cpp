// miniray.Pool's part of the core, for Python; miniray/pool.py has the rest.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "object_builder.hpp"
#include "pool_core.hpp"
#include "ready_worker.hpp"
#include "tasks/map_flow.hpp"

namespace miniray::python {
namespace {

// Each call is one step of the flow: Python's lock is held meanwhile.
void bind_map_flow(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<MapFlow>(module, "_MapFlow")
      .def(
          "__init__",
          [](MapFlow* self, PoolCore& pool, const FunctionHandle& function, std::optional<std::size_t> total,
             std::optional<std::size_t> chunk_size, bool one_by_one, std::size_t workers, bool ordered,
             std::size_t results_bytes_max, int retries) {
            new (self) MapFlow({std::to_string(function.function->number), total, chunk_size, one_by_one, workers,
                                ordered, results_bytes_max, retries},
                               pool.driver.tally());
          },
          nb::keep_alive<1, 2>(), "pool"_a, "function"_a, nb::kw_only(), "total"_a.none(), "chunk_size"_a.none(),
          "one_by_one"_a, "workers"_a, "ordered"_a, "results_bytes_max"_a, "retries"_a)
      .def("wanted", &MapFlow::wanted)
      .def("read", &MapFlow::read, "count"_a, "wanted"_a)
      .def(
          "begin",
          [](MapFlow& self, std::int64_t number, std::size_t first, std::size_t count, int tries) {
            self.begin({number, first, count, tries});
          },
          "number"_a, "first"_a, "count"_a, "tries"_a)
      .def("withdraw", &MapFlow::withdraw, "number"_a)
      .def("stop", &MapFlow::stop)
      .def("hurry", &MapFlow::hurry)
      .def_prop_ro("reads_on", &MapFlow::reads_on)
      .def(
          "finish",
          [](MapFlow& self, std::int64_t number, std::string_view kind) {
            const auto outcome = kind == "died"        ? TaskOutcome::Kind::died
                                 : kind == "cancelled" ? TaskOutcome::Kind::cancelled
                                                       : TaskOutcome::Kind::reply;
            MapFlow::Chunk chunk;
            const MapFlow::Fate fate = self.finish(number, outcome, &chunk);
            const char* const word = fate == MapFlow::Fate::arrives       ? "arrives"
                                     : fate == MapFlow::Fate::sent_singly ? "sent_singly"
                                                                          : "dropped";
            return std::tuple(word, chunk.first, chunk.tries, self.may_retry(chunk));
          },
          "number"_a, "kind"_a, "Returns its fate, its first item, its tries, and whether its items may be retried.")
      .def("measure", &MapFlow::measure, "items"_a, "ns"_a)
      .def(
          "arrive",
          [](MapFlow& self, std::size_t first, std::size_t count, std::size_t bytes, std::size_t done,
             std::size_t failed) { self.arrive({first, count, bytes}, done, failed); },
          "first"_a, "count"_a, "bytes"_a, "done"_a, "failed"_a)
      .def(
          "take",
          [](MapFlow& self) {
            const std::optional<MapFlow::Piece> piece = self.take();
            return piece ? std::optional(piece->first) : std::nullopt;
          },
          "Returns the first item of the results that come next; None while they are not there.")
      .def("hand_out", &MapFlow::hand_out, "bytes"_a)
      .def_prop_ro("is_settled", &MapFlow::is_settled)
      .def("abandon", &MapFlow::abandon)
      .def_prop_ro("abandoned", &MapFlow::abandoned);
}

}  // namespace

void bind_pool(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<FunctionHandle>(module, "_TaskFunction").def_prop_ro("number", [](const FunctionHandle& self) {
    return self.function->number;
  });
  nb::class_<TermsHandle>(module, "_TaskTerms");
  nb::class_<TaskHandle>(module, "_Task")
      .def_ro("may_be_tried_again", &TaskHandle::may_be_tried_again)
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
  nb::class_<SourceHandle>(module, "_WorkerSource")
      .def_static(
          "program", [] { return SourceHandle{program_source()}; }, "The program makes them.")
      .def_static(
          "server",
          [](const std::string& socket, const std::string& key, std::optional<int> spin_us) {
            return SourceHandle{server_source(fork_server_address(socket, key, spin_us))};
          },
          "socket"_a, "key"_a, "spin_us"_a.none(), "A server of this machine forks them.")
      .def_static(
          "cluster",
          [](nb::object cluster) { return SourceHandle{cluster_source(nb::cast<Cluster&>(cluster)), cluster}; },
          "cluster"_a, nb::sig("def cluster(cluster: Cluster) -> _WorkerSource"));
  nb::class_<TicketHandle>(module, "_Ticket")
      .def_prop_ro("node", [](const TicketHandle& self) { return self.ticket->node; })
      .def_prop_ro(
          "gone",
          [](const TicketHandle& self) {
            const nb::object known = nb::find(self.ticket->gone.get());
            return known.is_valid() ? known : nb::none();
          },
          nb::for_getter(nb::sig("def gone(self) -> typing.Any")), "The worker that had the place, if it is an object.")
      .def(
          "fill", [](const TicketHandle& self, nb::handle worker) { self.ticket->fill(shared_worker(worker)); },
          "worker"_a)
      .def(
          "fail", [](const TicketHandle& self, const std::string& why) { self.ticket->fail(why); }, "why"_a)
      .def("refuse", [](const TicketHandle& self, const std::string& why) { self.ticket->refuse(why); }, "why"_a);
  nb::class_<PoolCore>(module, "_Pool")
      .def(nb::init<EventLog&>(), "events"_a, nb::keep_alive<1, 2>())
      .def(
          "add_node",
          [](PoolCore& self, std::string name, double cpus, std::vector<std::string> gpu_names, const Amounts& custom) {
            self.driver.add_node({std::move(name), cpus, std::move(gpu_names), custom});
          },
          "name"_a, "cpus"_a, "gpu_names"_a, "custom"_a)
      .def(
          "start",
          [](PoolCore& self, SourceHandle& source, const std::optional<PolicyFields>& policy, nb::handle initializer,
             nb::handle arguments, nb::handle needs, nb::handle pack) {
            self.start(source, policy ? std::optional(policy_of(*policy)) : std::nullopt, initializer, arguments, needs,
                       pack);
          },
          "source"_a, "policy"_a.none(), "initializer"_a.none(), "arguments"_a, "needs"_a.none(), "pack"_a)
      .def(
          "add_worker",
          [](PoolCore& self, std::size_t node, nb::handle worker) {
            self.driver.add_worker(node, shared_worker(worker));
          },
          "node"_a, "worker"_a)
      .def(
          "set_link",
          [](PoolCore& self, std::size_t node, Channel& link) { self.driver.set_link(node, std::move(link)); },
          "node"_a, "link"_a)
      .def("new_function", &PoolCore::new_function)
      .def("describe", &PoolCore::describe, "function"_a, "definition"_a, "by_value"_a, "slot"_a, "name"_a)
      .def("redefine", &PoolCore::redefine, "function"_a, "definition"_a, "needs"_a,
           nb::sig(
               "def redefine(self, function: _TaskFunction, definition: object, needs: list[_TaskFunction]) -> None"))
      .def_static(
          "needs", [](const nb::list& handles) { return NeedsHandle{std::make_shared<TaskNeeds>(all_of(handles))}; },
          "handles"_a, nb::sig("def needs(handles: list[_TaskFunction]) -> _TaskNeeds"))
      .def(
          "change_needs",
          [](PoolCore& self, const NeedsHandle& needs, const nb::list& handles) {
            self.driver.change_needs(needs.needs, all_of(handles));
          },
          "needs"_a, "handles"_a,
          nb::sig("def change_needs(self, needs: _TaskNeeds, handles: list[_TaskFunction]) -> None"))
      .def(
          "terms",
          [](const PoolCore& self, double cpus, double gpus, const Amounts& custom, const std::string& node,
             const std::string& strategy, std::optional<double> timeout_s, int retries) {
            const Strategy placed = strategy == "pack" ? Strategy::pack : Strategy::spread;
            return TermsHandle{self.driver.terms({{cpus, gpus, custom, node, placed}, timeout_s, retries})};
          },
          "cpus"_a, "gpus"_a, "custom"_a, "node"_a, "strategy"_a, "timeout_s"_a.none(), "retries"_a)
      .def("submit",
           nb::overload_cast<const FunctionHandle&, nb::handle, nb::handle, const TermsHandle&, nb::handle, nb::handle,
                             nb::handle, nb::handle, std::int64_t>(&PoolCore::submit),
           "function"_a, "arguments"_a, "keywords"_a, "terms"_a, "memory"_a.none(), "owner"_a, "needs"_a.none(),
           "pack"_a, "number"_a = 0)
      .def("submit_map", &PoolCore::submit_map, "function"_a, "items"_a, "star"_a, "terms"_a, "owner"_a,
           "needs"_a.none(), "pack"_a, "number"_a = 0,
           nb::sig("def submit_map(self, function: _TaskFunction, items: list[typing.Any], star: bool, terms: "
                   "_TaskTerms, owner: object, needs: _TaskNeeds | None, pack: object, number: int = 0) -> int"))
      .def("next_number", [](PoolCore& self) { return self.driver.next_number(); })
      .def("resubmit", &PoolCore::resubmit, "task"_a, "owner"_a)
      .def(
          "cancel",
          [](PoolCore& self, std::int64_t number, bool even_if_it_runs) {
            self.driver.cancel(number, even_if_it_runs);
          },
          "number"_a, "even_if_it_runs"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "interrupt",
          [](PoolCore& self, std::int64_t number) { self.driver.cancel(number, true, Closing::interrupt); }, "number"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def("cancel_waiting", [](PoolCore& self) { self.driver.cancel_waiting(); })
      .def("cancel_all", [](PoolCore& self) { self.driver.cancel_all(); })
      .def("broken", [](const PoolCore& self) { return self.driver.broken(); })
      .def("refuse_tasks", [](PoolCore& self) { self.driver.refuse_tasks(); })
      .def("is_finished", [](PoolCore& self) { return self.driver.is_finished(); })
      .def("wait_news", &PoolCore::wait_news,
           nb::sig("def wait_news(self) -> tuple[list[typing.Any], list[_Ticket], list[int], bool] | None"))
      .def("status", &PoolCore::status, nb::sig("def status(self) -> dict[str, typing.Any]"))
      .def("workers", &PoolCore::workers, nb::sig("def workers(self) -> list[tuple[str, str, int, str, int]]"),
           "name, node, pid, state, tasks")
      .def("count_unreadable", [](PoolCore& self) { self.driver.tally().count_unreadable(); })
      .def("nudge", [](PoolCore& self) { self.driver.nudge(); })
      .def(
          "is_running", [](PoolCore& self, std::int64_t number) { return self.driver.is_running(number); }, "number"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "hurry", [](PoolCore& self, int how) { self.driver.hurry(static_cast<Closing>(how)); }, "how"_a)
      .def("stop", [](PoolCore& self) { self.driver.stop(); }, nb::call_guard<nb::gil_scoped_release>());
  bind_map_flow(module);
}

}  // namespace miniray::python
