// miniray.Pool's part of the core: tasks are encoded here, and their outcomes decoded. miniray/pool.py has the rest.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "calls.hpp"
#include "calls/call_format.hpp"
#include "interop.hpp"
#include "key.hpp"
#include "object_builder.hpp"
#include "ready_worker.hpp"
#include "tasks/driver.hpp"
#include "tasks/map_flow.hpp"

namespace miniray::python {
namespace {

struct FunctionHandle {
  std::shared_ptr<TaskFunction> function;
};
struct NeedsHandle {
  std::shared_ptr<TaskNeeds> needs;  // only the engine reads or changes it: see TaskDriver::change_needs
};
struct TermsHandle {
  std::shared_ptr<const TaskTerms> terms;
};
struct TaskHandle {
  Task task;
  bool may_be_tried_again = false;
};
struct SourceHandle {
  std::unique_ptr<WorkerSource> source;  // until a pool takes it
  nb::object keeps = {};
};
struct TicketHandle {
  std::shared_ptr<Ticket> ticket;
};

constexpr std::int64_t initializer_number = -1;

// Returns the worker of a Python object, or one that the core made.
std::shared_ptr<Worker> shared_worker(nb::handle worker) {
  if (nb::isinstance<ReadyWorker>(worker)) return std::move(nb::cast<ReadyWorker&>(worker).worker);
  worker.inc_ref();  // the object's worker lives as long as the object
  return {&nb::cast<Worker&>(worker), [worker](Worker*) {
            const nb::gil_scoped_acquire gil;
            worker.dec_ref();
          }};
}

TaskNeeds functions_of(const nb::list& handles) {
  TaskNeeds all;
  for (const nb::handle handle : handles) all.push_back(nb::cast<FunctionHandle&>(handle).function);
  return all;
}

// The handle may be None.
std::shared_ptr<const TaskNeeds> needs_of(nb::handle handle) {
  return handle.is_none() ? nullptr : nb::cast<NeedsHandle&>(handle).needs;
}

nb::object text(const std::string& bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

// A task keeps its owner alive, so the garbage collector need not visit it. There may be a million of them.
void hold(nb::handle owner) {
  owner.inc_ref();
  if (PyObject_GC_IsTracked(owner.ptr()) != 0) PyObject_GC_UnTrack(owner.ptr());
}

Message encode_definition(std::int64_t number, nb::handle definition) {
  nb::list parts;
  parts.append(number);
  parts.append(definition);
  EncodedObject encoded(parts, Codec::msgpack);
  encoded.set_kind(Message::Kind::call, {.verb = static_cast<std::uint8_t>(CallVerb::define)});
  return std::move(encoded).detach();
}

// Encodes the call of a task, and notes in the task what its arguments refer to.
std::unique_ptr<EncodedObject> encode_for(Task& task, CallVerb verb, nb::list parts, nb::handle pack) {
  nb::object more;
  std::unique_ptr<EncodedObject> encoded = encode_parts(
      std::move(parts), verb == CallVerb::map ? of_map : of_call, [pack](nb::handle value) { return pack(value); },
      &more);
  encoded->set_kind(Message::Kind::call, {task.number, 0, static_cast<std::uint8_t>(verb)});
  if (more.is_valid()) task.argument_needs = needs_of(more);
  return encoded;
}

nb::list call_parts(const TaskFunction& function, nb::handle arguments, nb::handle keywords, nb::handle memory) {
  nb::list parts;
  parts.append(function.number);
  parts.append(nb::steal(PySequence_List(arguments.ptr())));
  parts.append(keywords);
  if (!memory.is_none()) parts.append(memory);
  return parts;
}

// Returns (owner, kind, what, worker, bytes, extra). `what` depends on the kind. `extra` is the time that it took if
// there is a value, and the task otherwise, which may be submitted again.
nb::tuple object_of(TaskOutcome& outcome) {
  const nb::object owner = nb::steal(static_cast<PyObject*>(outcome.task.owner));
  if (PyObject_GC_IsTracked(owner.ptr()) == 0) PyObject_GC_Track(owner.ptr());
  const char* kind = nullptr;
  nb::object what = nb::none();
  switch (outcome.kind) {
    case TaskOutcome::Kind::reply: {
      const ReplyVerb verb = reply_verb(outcome.reply);
      what = decode_object(outcome.reply);
      if (ending_of(outcome) == Ending::done) {
        const nb::object worker = verb == ReplyVerb::value ? nb::none() : nb::cast(outcome.worker);
        kind = verb == ReplyVerb::value ? "value" : verb == ReplyVerb::values ? "values" : "pickle";
        return nb::make_tuple(owner, kind, what, worker, outcome.reply.size(), outcome.reply.head.time_ns);
      }
      kind = "error";
      what = nb::make_tuple(verb == ReplyVerb::error ? "error" : "unknown", what);
      break;
    }
    case TaskOutcome::Kind::died:
      kind = "died";
      what = died_object(WorkerDied(*outcome.certificate));
      break;
    case TaskOutcome::Kind::timed_out:
      kind = "timeout";
      what = text(outcome.text);
      break;
    case TaskOutcome::Kind::cancelled:
      kind = "cancelled";
      break;
    case TaskOutcome::Kind::broken:
      kind = "broken";
      what = text(outcome.text);
      break;
  }
  const bool again = may_be_tried_again(outcome);
  return nb::make_tuple(owner, kind, what, outcome.worker, 0, nb::cast(TaskHandle{std::move(outcome.task), again}));
}

// The same for a reply that a worker may have made up. If it cannot be read, the kind is "unreadable", and `what` is
// the exception that says why: one reply must not keep the other outcomes from their futures.
nb::tuple readable_object_of(TaskOutcome& outcome, Tally& tally) {
  nb::handle owner(static_cast<PyObject*>(outcome.task.owner));
  owner.inc_ref();  // object_of() takes its reference, and may then throw
  const nb::object kept = nb::steal(owner);
  try {
    return object_of(outcome);
  } catch (...) {
    const nb::object why = raised_by(std::current_exception());
    const nb::object worker = text(outcome.worker);
    if (ending_of(outcome) == Ending::done && !outcome.task.of_map) tally.count_unreadable();
    return nb::make_tuple(kept, "unreadable", why, worker, 0, nb::none());
  }
}

// A task driver whose tasks are Python calls, and whose tasks' owners are Python objects. In what it takes, `needs` is
// a NeedsHandle or None, and `pack` is a function that pickles what messages cannot say.
class PoolCore : public TaskDriver {
 public:
  using TaskDriver::TaskDriver;
  ~PoolCore() {
    const nb::gil_scoped_release released;  // the driver's thread may need the GIL to drop a worker
    stop();
  }

  void start_python(SourceHandle& source, const std::optional<PolicyFields>& fields, nb::handle initializer,
                    nb::handle arguments, nb::handle needs, nb::handle pack, bool pickle) {
    source_keeps_ = source.keeps;
    const std::optional<RestartPolicy> policy = fields ? std::optional(policy_of(*fields)) : std::nullopt;
    std::optional<Task> first;
    if (!initializer.is_none()) {
      first.emplace().function = nb::cast<FunctionHandle&>(initializer).function;
      first->needs = needs_of(needs);
      first->number = initializer_number;
      nb::list parts = call_parts(*first->function, arguments, nb::dict(), nb::none());
      first->call = std::move(*encode_for(*first, CallVerb::call, std::move(parts), pack)).detach();
    }
    start(Runs::in_a_thread, std::move(source.source), policy, std::move(first), pickle);
  }

  FunctionHandle new_function() {
    auto function = std::make_shared<TaskFunction>();
    function->number = ++last_function_;
    return {function};
  }
  // Comes before the first task that refers to the function. Later, redefine() tells workers more.
  static void describe(const FunctionHandle& handle, nb::handle definition, bool by_value, std::string slot,
                       std::string name) {
    TaskFunction& function = *handle.function;
    if (!function.name.empty()) return;
    function.definition = encode_definition(function.number, definition);
    function.by_value = by_value;
    function.slot = std::move(slot);
    function.name = std::move(name);
  }

  // The number is 0; or, of a chunk of a map, one from next_number(). The chunk's `submitted` becomes true: a signal's
  // handler may raise as soon as this returns, and then tells whoever catches that whether an outcome will come.
  std::int64_t submit_call(const FunctionHandle& function, nb::handle arguments, nb::handle keywords,
                           const TermsHandle& terms, nb::handle memory, nb::handle owner, nb::handle needs,
                           nb::handle pack, std::int64_t number) {
    return submit_parts(function, CallVerb::call, call_parts(*function.function, arguments, keywords, memory), terms,
                        owner, needs, pack, number);
  }
  std::int64_t submit_map(const FunctionHandle& function, nb::list items, bool star, const TermsHandle& terms,
                          nb::handle owner, nb::handle needs, nb::handle pack, std::int64_t number) {
    nb::list parts;
    parts.append(function.function->number);
    parts.append(items);
    parts.append(star);
    return submit_parts(function, CallVerb::map, std::move(parts), terms, owner, needs, pack, number);
  }
  // Submits the same call again, as a task of the same number that keeps its place.
  void resubmit(TaskHandle& handle, nb::handle owner) {
    hold(owner);
    handle.task.owner = owner.ptr();
    submit_again(std::move(handle.task));
  }

  // Waits for news. Returns (outcomes, tickets, unknown functions, whether there are events), or None after the end.
  nb::object wait_python_news() {
    std::optional<News> news;
    {
      const nb::gil_scoped_release released;
      news = wait_news();
    }
    if (!news) return nb::none();
    nb::list outcomes, tickets, unknown;
    for (TaskOutcome& outcome : news->outcomes) outcomes.append(readable_object_of(outcome, tally()));
    for (std::shared_ptr<Ticket>& ticket : news->tickets) tickets.append(nb::cast(TicketHandle{std::move(ticket)}));
    for (const std::int64_t number : news->unknown_functions) unknown.append(number);
    return nb::make_tuple(outcomes, tickets, unknown, news->noted);
  }

  nb::dict status() {
    TaskEngine::Census counted;
    {
      const nb::gil_scoped_release released;
      counted = census();
    }
    nb::dict status;
    status["queued"] = counted.waiting;
    status["running"] = counted.running;
    status["done"] = tally().done();
    status["failed"] = tally().failed();
    status["workers"] = counted.workers;
    status["idle"] = counted.idle;
    return status;
  }

 private:
  std::int64_t submit_parts(const FunctionHandle& function, CallVerb verb, nb::list parts, const TermsHandle& terms,
                            nb::handle owner, nb::handle needs, nb::handle pack, std::int64_t number) {
    Task task;
    task.function = function.function;
    task.needs = needs_of(needs);
    task.of_map = number != 0;
    task.number = task.of_map ? number : next_number();
    const std::int64_t used = task.number;
    const std::unique_ptr<EncodedObject> encoded = encode_for(task, verb, std::move(parts), pack);
    task.large = large_buffers_.own_buffers(encoded->message());
    task.call = std::move(*encoded).detach();
    task.terms = terms.terms;
    task.owner = owner.ptr();
    if (!submit(std::move(task))) throw std::runtime_error("cannot schedule new futures after shutdown");
    hold(owner);  // the outcome cannot be taken before: that needs the GIL, too
    if (number != 0) owner.attr("submitted") = true;
    return used;
  }

  std::int64_t last_function_ = 0;
  LargeBuffers large_buffers_;  // guarded by the GIL
  nb::object source_keeps_;
};

void bind_handles(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<FunctionHandle>(module, "_TaskFunction").def_prop_ro("number", [](const FunctionHandle& self) {
    return self.function->number;
  });
  nb::class_<TermsHandle>(module, "_TaskTerms");
  nb::class_<TaskHandle>(module, "_Task")
      .def_ro("may_be_tried_again", &TaskHandle::may_be_tried_again)
      .def_prop_ro("tries", [](const TaskHandle& self) { return self.task.tries; })
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
          [](const std::string& socket, const KeyHandle& key, std::optional<int> spin_us,
             std::uint64_t message_bytes_max) {
            return SourceHandle{server_source(fork_server_address(socket, key.key, spin_us, message_bytes_max))};
          },
          "socket"_a, "key"_a, "spin_us"_a.none(), "message_bytes_max"_a, "A server of this machine forks them.")
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
}

// What Python asks of the core's driver as it is.
void bind_driver(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<TaskDriver>(module, "_TaskDriver")
      .def(
          "add_node",
          [](TaskDriver& self, std::string name, double cpus, std::vector<std::string> gpu_names,
             const Amounts& custom) { self.add_node({std::move(name), cpus, std::move(gpu_names), custom}); },
          "name"_a, "cpus"_a, "gpu_names"_a, "custom"_a)
      .def(
          "add_worker",
          [](TaskDriver& self, std::size_t node, nb::handle worker, bool may_be_silent) {
            self.add_worker(node, shared_worker(worker), may_be_silent);
          },
          "node"_a, "worker"_a, "may_be_silent"_a = false)
      .def(
          "set_link", [](TaskDriver& self, std::size_t node, Channel& link) { self.set_link(node, std::move(link)); },
          "node"_a, "link"_a)
      .def(
          "redefine",
          [](TaskDriver& self, const FunctionHandle& handle, nb::handle definition, const nb::list& needs) {
            self.redefine(handle.function, encode_definition(handle.function->number, definition), functions_of(needs));
          },
          "function"_a, "definition"_a, "needs"_a,
          nb::sig("def redefine(self, function: _TaskFunction, definition: object, needs: list[_TaskFunction]) -> "
                  "None"))
      .def_static(
          "needs",
          [](const nb::list& handles) { return NeedsHandle{std::make_shared<TaskNeeds>(functions_of(handles))}; },
          "handles"_a, nb::sig("def needs(handles: list[_TaskFunction]) -> _TaskNeeds"))
      .def(
          "change_needs",
          [](TaskDriver& self, const NeedsHandle& needs, const nb::list& handles) {
            self.change_needs(needs.needs, functions_of(handles));
          },
          "needs"_a, "handles"_a,
          nb::sig("def change_needs(self, needs: _TaskNeeds, handles: list[_TaskFunction]) -> None"))
      .def(
          "terms",
          [](const TaskDriver& self, double cpus, double gpus, const Amounts& custom, const std::string& node,
             const std::string& strategy, std::optional<double> timeout_s, int retries) {
            const Strategy placed = strategy == "pack" ? Strategy::pack : Strategy::spread;
            return TermsHandle{self.terms({{cpus, gpus, custom, node, placed}, timeout_s, retries})};
          },
          "cpus"_a, "gpus"_a, "custom"_a, "node"_a, "strategy"_a, "timeout_s"_a.none(), "retries"_a)
      .def_static("next_number", &TaskDriver::next_number)
      .def(
          "cancel",
          [](TaskDriver& self, std::int64_t number, bool even_if_it_runs) { self.cancel(number, even_if_it_runs); },
          "number"_a, "even_if_it_runs"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "interrupt", [](TaskDriver& self, std::int64_t number) { self.cancel(number, true, Closing::interrupt); },
          "number"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("cancel_waiting", &TaskDriver::cancel_waiting)
      .def("cancel_all", &TaskDriver::cancel_all)
      .def("broken", &TaskDriver::broken)
      .def("refuse_tasks", &TaskDriver::refuse_tasks)
      .def("refuses_tasks", &TaskDriver::refuses_tasks)
      .def("is_finished", &TaskDriver::is_finished)
      .def(
          "workers",
          [](TaskDriver& self) {
            std::vector<std::tuple<std::string, std::string, std::int64_t, std::string, std::size_t>> all;
            for (const TaskEngine::WorkerStatus& worker : self.workers())
              all.emplace_back(worker.name, worker.node, worker.pid, worker.state, worker.tasks);
            return all;
          },
          nb::call_guard<nb::gil_scoped_release>(), "name, node, pid, state, tasks")
      .def(
          "break_down", [](TaskDriver& self, const std::string& why) { self.break_down(why); }, "why"_a)
      .def("count_unreadable", [](TaskDriver& self) { self.tally().count_unreadable(); })
      .def("nudge", &TaskDriver::nudge)
      .def("is_running", &TaskDriver::is_running, "number"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "hurry", [](TaskDriver& self, int how) { self.hurry(static_cast<Closing>(how)); }, "how"_a)
      .def("stop", &TaskDriver::stop, nb::call_guard<nb::gil_scoped_release>());
}

// Each call is one step of the flow: Python's lock is held meanwhile.
void bind_map_flow(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<MapFlow>(module, "_MapFlow")
      .def(
          "__init__",
          [](MapFlow* self, TaskDriver& pool, const FunctionHandle& function, std::optional<std::size_t> total,
             std::optional<std::size_t> chunk_size, bool one_by_one, std::size_t workers, bool ordered,
             std::size_t results_bytes_max, int retries) {
            new (self) MapFlow({std::to_string(function.function->number), total, chunk_size, one_by_one, workers,
                                ordered, results_bytes_max, retries},
                               pool.tally());
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
  bind_handles(module);
  bind_driver(module);
  bind_map_flow(module);
  nb::class_<PoolCore, TaskDriver>(module, "_Pool")
      .def(nb::init<EventLog&>(), "events"_a, nb::keep_alive<1, 2>())
      .def("start", &PoolCore::start_python, "source"_a, "policy"_a.none(), "initializer"_a.none(), "arguments"_a,
           "needs"_a.none(), "pack"_a, "pickle"_a)
      .def("new_function", &PoolCore::new_function)
      .def_static("describe", &PoolCore::describe, "function"_a, "definition"_a, "by_value"_a, "slot"_a, "name"_a)
      .def("submit", &PoolCore::submit_call, "function"_a, "arguments"_a, "keywords"_a, "terms"_a, "memory"_a.none(),
           "owner"_a, "needs"_a.none(), "pack"_a, "number"_a = 0)
      .def("submit_map", &PoolCore::submit_map, "function"_a, "items"_a, "star"_a, "terms"_a, "owner"_a,
           "needs"_a.none(), "pack"_a, "number"_a,
           nb::sig("def submit_map(self, function: _TaskFunction, items: list[typing.Any], star: bool, terms: "
                   "_TaskTerms, owner: object, needs: _TaskNeeds | None, pack: object, number: int) -> int"))
      .def("resubmit", &PoolCore::resubmit, "task"_a, "owner"_a)
      .def("wait_news", &PoolCore::wait_python_news,
           nb::sig("def wait_news(self) -> tuple[list[typing.Any], list[_Ticket], list[int], bool] | None"))
      .def("status", &PoolCore::status, nb::sig("def status(self) -> dict[str, typing.Any]"));
}

}  // namespace miniray::python
