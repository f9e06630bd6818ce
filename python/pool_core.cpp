#include "pool_core.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "calls.hpp"
#include "calls/call_format.hpp"
#include "object_builder.hpp"
#include "ready_worker.hpp"

namespace miniray::python {

TaskNeeds all_of(const nb::list& handles) {
  TaskNeeds all;
  for (const nb::handle handle : handles) all.push_back(nb::cast<FunctionHandle&>(handle).function);
  return all;
}

namespace {

constexpr std::int64_t initializer_number = -1;

nb::object text(const std::string& bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

// While a task waits, its owner lives: the garbage collector need not visit it, and a million of them, again and
// again.
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

std::shared_ptr<const TaskNeeds> needs_of(nb::handle handle) {
  return handle.is_none() ? nullptr : nb::cast<NeedsHandle&>(handle).needs;
}

// Notes what its arguments refer to.
std::unique_ptr<EncodedObject> encode_for(Task& task, CallVerb verb, nb::list parts, nb::handle pack) {
  nb::object more;
  std::unique_ptr<EncodedObject> encoded = encode_parts(
      std::move(parts), verb == CallVerb::map ? of_map : of_call, [pack](nb::handle value) { return pack(value); },
      &more);
  encoded->set_kind(Message::Kind::call, {task.number, 0, static_cast<std::uint8_t>(verb)});
  if (more.is_valid()) task.argument_needs = needs_of(more);
  return encoded;
}

// (owner, kind, what, worker, bytes, task): what depends on the kind; the task is there if it may be tried again.
nb::tuple object_of(TaskOutcome& outcome) {
  const nb::object owner = nb::steal(static_cast<PyObject*>(outcome.task.owner));
  if (PyObject_GC_IsTracked(owner.ptr()) == 0) PyObject_GC_Track(owner.ptr());
  const char* kind = nullptr;
  nb::object what = nb::none();
  switch (outcome.kind) {
    case TaskOutcome::Kind::reply: {
      const ReplyVerb verb = reply_verb(outcome.reply);
      const nb::object body = decode_object(outcome.reply);
      const std::int64_t ns = outcome.reply.head.time_ns;
      if (verb == ReplyVerb::value) return nb::make_tuple(owner, "value", body, nb::none(), outcome.reply.size(), ns);
      kind = verb == ReplyVerb::values ? "values" : verb == ReplyVerb::pickle ? "pickle" : "error";
      if (verb != ReplyVerb::error && verb != ReplyVerb::unknown)
        return nb::make_tuple(owner, kind, body, outcome.worker, outcome.reply.size(), ns);
      what = nb::make_tuple(verb == ReplyVerb::error ? "error" : "unknown", body);
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

nb::list call_parts(const TaskFunction& function, nb::handle arguments, nb::handle keywords, nb::handle memory) {
  nb::list parts;
  parts.append(function.number);
  parts.append(nb::steal(PySequence_List(arguments.ptr())));
  parts.append(keywords);
  if (!memory.is_none()) parts.append(memory);
  return parts;
}

}  // namespace

void PoolCore::start(SourceHandle& source, const std::optional<RestartPolicy>& policy, nb::handle initializer,
                     nb::handle arguments, nb::handle needs, nb::handle pack) {
  constexpr auto runs = TaskDriver::Runs::in_a_thread;
  source_keeps_ = source.keeps;
  if (initializer.is_none()) return driver.start(runs, std::move(source.source), policy);
  Task task;
  task.function = nb::cast<FunctionHandle&>(initializer).function;
  task.needs = needs_of(needs);
  task.number = initializer_number;
  nb::list parts = call_parts(*task.function, arguments, nb::dict(), nb::none());
  task.call = std::move(*encode_for(task, CallVerb::call, std::move(parts), pack)).detach();
  driver.start(runs, std::move(source.source), policy, std::move(task));
}

std::shared_ptr<Worker> shared_worker(nb::handle worker) {
  if (nb::isinstance<ReadyWorker>(worker)) return std::move(nb::cast<ReadyWorker&>(worker).worker);
  worker.inc_ref();  // the object's worker lives as long as the object
  return {&nb::cast<Worker&>(worker), [worker](Worker*) {
            const nb::gil_scoped_acquire gil;
            worker.dec_ref();
          }};
}

FunctionHandle PoolCore::new_function() {
  auto function = std::make_shared<TaskFunction>();
  function->number = ++last_function_;
  return {function};
}

void PoolCore::describe(const FunctionHandle& handle, nb::handle definition, bool by_value, std::string slot,
                        std::string name) {
  TaskFunction& function = *handle.function;
  if (!function.name.empty()) return;  // workers have heard of it: redefine() tells them more
  function.definition = encode_definition(function.number, definition);
  function.by_value = by_value;
  function.slot = std::move(slot);
  function.name = std::move(name);
}

void PoolCore::redefine(const FunctionHandle& handle, nb::handle definition, nb::list needs) {
  driver.redefine(handle.function, encode_definition(handle.function->number, definition), all_of(needs));
}

std::int64_t PoolCore::submit(const FunctionHandle& function, nb::handle arguments, nb::handle keywords,
                              const TermsHandle& terms, nb::handle memory, nb::handle owner, nb::handle needs,
                              nb::handle pack, std::int64_t number) {
  Task task;
  task.function = function.function;
  task.needs = needs_of(needs);
  nb::list parts = call_parts(*function.function, arguments, keywords, memory);
  return submit(std::move(task), std::move(parts), CallVerb::call, terms, owner, pack, number);
}

std::int64_t PoolCore::submit_map(const FunctionHandle& function, nb::list items, bool star, const TermsHandle& terms,
                                  nb::handle owner, nb::handle needs, nb::handle pack, std::int64_t number) {
  Task task;
  task.function = function.function;
  task.needs = needs_of(needs);
  nb::list parts;
  parts.append(function.function->number);
  parts.append(items);
  parts.append(star);
  return submit(std::move(task), std::move(parts), CallVerb::map, terms, owner, pack, number);
}

std::int64_t PoolCore::submit(Task task, nb::list parts, CallVerb verb, const TermsHandle& terms, nb::handle owner,
                              nb::handle pack, std::int64_t number) {
  task.of_map = number != 0;
  task.number = task.of_map ? number : driver.next_number();
  const std::int64_t used = task.number;
  const std::unique_ptr<EncodedObject> encoded = encode_for(task, verb, std::move(parts), pack);
  task.large = large_buffers_.own_buffers(encoded->message());
  task.call = std::move(*encoded).detach();
  task.terms = terms.terms;
  task.owner = owner.ptr();
  if (!driver.submit(std::move(task))) throw std::runtime_error("cannot schedule new futures after shutdown");
  hold(owner);  // whoever takes the outcome needs the GIL, too
  return used;
}

void PoolCore::resubmit(TaskHandle& handle, nb::handle owner) {
  hold(owner);
  handle.task.owner = owner.ptr();
  driver.submit_again(std::move(handle.task));
}

nb::dict PoolCore::status() {
  TaskEngine::Census census;
  {
    const nb::gil_scoped_release released;
    census = driver.census();
  }
  nb::dict status;
  status["queued"] = census.waiting;
  status["running"] = census.running;
  status["done"] = driver.tally().done();
  status["failed"] = driver.tally().failed();
  status["workers"] = census.workers;
  status["idle"] = census.idle;
  return status;
}

nb::list PoolCore::workers() {
  std::vector<TaskEngine::WorkerStatus> workers;
  {
    const nb::gil_scoped_release released;
    workers = driver.workers();
  }
  nb::list all;
  for (const TaskEngine::WorkerStatus& worker : workers)
    all.append(nb::make_tuple(worker.name, worker.node, worker.pid, worker.state, worker.tasks));
  return all;
}

nb::object PoolCore::wait_news() {
  std::optional<TaskDriver::News> news;
  {
    const nb::gil_scoped_release released;
    news = driver.wait_news();
  }
  if (!news) return nb::none();
  nb::list outcomes, tickets, unknown;
  for (TaskOutcome& outcome : news->outcomes) outcomes.append(object_of(outcome));
  for (std::shared_ptr<Ticket>& ticket : news->tickets) tickets.append(nb::cast(TicketHandle{std::move(ticket)}));
  for (const std::int64_t number : news->unknown_functions) unknown.append(number);
  return nb::make_tuple(outcomes, tickets, unknown, news->noted);
}

}  // namespace miniray::python
