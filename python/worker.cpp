// The base class of miniray.Worker, whose Python part is in miniray/worker.py.
#include "miniray/worker.hpp"

#include <nanobind/stl/vector.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "base/grace.hpp"
#include "conversation.hpp"
#include "ready_worker.hpp"
#include "work_function.hpp"

namespace miniray::python {

namespace {

// Calls a function of miniray/worker.py. Returns false if Ctrl-C came meanwhile.
bool call_uninterrupted(const char* function) {
  try {
    attribute("miniray.worker", function)();
    return true;
  } catch (nb::python_error& raised) {
    if (!raised.matches(PyExc_KeyboardInterrupt)) raised.discard_as_unraisable("a signal handler before a fork");
    return !raised.matches(PyExc_KeyboardInterrupt);
  }
}

}  // namespace

// The thread that forks may not have the GIL, as in a server's loop, so it takes the GIL, and the child keeps it.
// Python's hooks around a fork are Python code and swallow exceptions of signal handlers, so Ctrl-C is deferred
// meanwhile.
ForkOptions fork_options() {
  static thread_local PyGILState_STATE gil;
  static thread_local bool interrupted;
  ForkOptions options;
  options.before_fork = [] {
    gil = PyGILState_Ensure();
    defer_interrupts();
    interrupted = !call_uninterrupted("_flush_output");  // raises a Ctrl-C that came before
    PyOS_BeforeFork();
  };
  options.after_fork_in_parent = [] {
    PyOS_AfterFork_Parent();
    if (interrupted) note_interrupt();
    if (allow_interrupts() || interrupted) PyErr_SetInterrupt();
    PyGILState_Release(gil);
  };
  options.after_fork_in_child = [] {
    PyOS_AfterFork_Child();
    attribute("miniray._work", "forget_key")();
    (void)allow_interrupts();
  };
  options.limit_threads_in_child = [] { attribute("miniray._work", "limit_threads")(); };
  options.warn_of_threads = false;  // miniray/worker.py counts Python's threads only; numpy's threads survive a fork
  options.spawn_call = "start=\"spawn\"";
  options.on_warning = [](const std::string& text) {
    const nb::gil_scoped_acquire gil;
    attribute("miniray.worker", "_warn")(text);
  };
  return options;
}

WorkerOptions worker_options(const std::string& name, const std::string& codec, bool shared_memory,
                             std::optional<int> spin_us, std::uint64_t inbox_bytes_max,
                             std::uint64_t message_bytes_max) {
  WorkerOptions options;
  options.name = name;
  options.codec = parse_codec(codec);
  options.shared_memory = shared_memory;
  options.spin_us = spin_us;
  options.inbox_bytes_max = inbox_bytes_max;
  options.message_bytes_max = message_bytes_max;
  options.on_interrupt = check_signals;
  options.fork = fork_options();
  watch_interrupts();
  return options;
}

namespace {

// The __del__ of a worker. It is not Python code, because Python swallows a KeyboardInterrupt in __del__; here the
// interrupt is raised again afterwards, where the program can catch it.
void close_dropped(nb::handle self) {
  if (!nb::inst_ready(self)) return;
  Worker* const worker = &nb::cast<Worker&>(self);
  try {
    const nb::gil_scoped_release released;
    const bool hurry = just_interrupted();
    close_all(std::span(&worker, 1), hurry ? Closing::interrupt : Closing::finish);
    if (hurry) note_interrupt();  // so that the next dropped worker is closed in a hurry too
  } catch (nb::python_error& raised) {
    if (raised.matches(PyExc_KeyboardInterrupt))
      PyErr_SetInterrupt();
    else
      raised.discard_as_unraisable("the end of a worker that was dropped");
  }
}

// The arguments of the last wait_any, so that a call with the same ones is fast. The references are borrowed: they are
// only compared, and only as long as no channel was closed or destroyed since.
struct LastWait {
  std::vector<PyObject*> objects;
  std::vector<Channel*> channels;
  std::uint64_t departures = 0;
};

Channel& channel_of_object(nb::handle object) {
  if (nb::isinstance<Worker>(object)) return nb::cast<Worker&>(object).channel();
  if (nb::isinstance<Channel>(object)) return nb::cast<Channel&>(object);
  if (nb::isinstance<Handle>(object)) return nb::cast<Handle&>(object).channel();
  refuse("wait_any takes a list of workers, handles and channels, and one of them is ", object);
}

nb::list wait_any_objects(nb::handle workers, std::optional<double> timeout) {
  if (!nb::hasattr(workers, "__iter__"))
    refuse("wait_any takes a list of workers, handles and channels, not ", workers);
  // A copy, because another thread could change the list while this one waits without the GIL.
  const nb::object sequence = nb::steal(PySequence_Tuple(workers.ptr()));
  if (!sequence.is_valid()) throw nb::python_error();
  thread_local bool waiting = false;
  if (waiting) throw UsageError("wait_any is already waiting in this thread; do not call it from a signal handler");
  const std::span<PyObject*> objects(PySequence_Fast_ITEMS(sequence.ptr()),
                                     static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr())));
  thread_local LastWait last;
  const bool same = objects.size() == last.objects.size() &&
                    std::memcmp(objects.data(), last.objects.data(), objects.size_bytes()) == 0;
  if (!same || last.departures != channel_departures()) {
    last.channels.clear();
    last.objects.clear();
    for (PyObject* object : objects) last.channels.push_back(&channel_of_object(object));
    last.objects.assign(objects.begin(), objects.end());
    last.departures = channel_departures();
  }
  std::vector<std::size_t> ready;
  {
    struct Mark {
      Mark() { waiting = true; }
      ~Mark() { waiting = false; }
    } const mark;
    const nb::gil_scoped_release released;
    ready = wait_any(std::span<Channel* const>(last.channels), timeout);
  }
  nb::list result;
  for (const std::size_t position : ready) result.append(nb::borrow(objects[position]));
  return result;
}

}  // namespace

void bind_worker(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Worker> worker(module, "Worker", nb::dynamic_attr(), nb::is_weak_referenceable());
  worker
      .def(
          "__init__",
          [](Worker* self, nb::callable work, const std::string& name, const std::string& codec, bool shared_memory,
             std::optional<int> spin_us, std::uint64_t inbox_bytes_max, std::uint64_t message_bytes_max) {
            new (self) Worker(as_work_function(std::move(work)),
                              worker_options(name, codec, shared_memory, spin_us, inbox_bytes_max, message_bytes_max));
          },
          "work"_a, "name"_a, "codec"_a, "shared_memory"_a, "spin_us"_a.none(), "inbox_bytes_max"_a,
          "message_bytes_max"_a,
          nb::sig("def __init__(self, work: collections.abc.Callable[[Handle], typing.Any], name: str, codec: str, "
                  "shared_memory: bool, spin_us: int | None, inbox_bytes_max: int, message_bytes_max: int) -> None"))
      .def(
          "__init__",
          [](Worker* self, const std::vector<std::string>& command, const std::string& name, const std::string& codec,
             bool shared_memory, std::optional<int> spin_us, std::uint64_t inbox_bytes_max,
             std::uint64_t message_bytes_max) {
            new (self) Worker(Worker::spawn(
                command, worker_options(name, codec, shared_memory, spin_us, inbox_bytes_max, message_bytes_max)));
          },
          "command"_a, "name"_a, "codec"_a, "shared_memory"_a, "spin_us"_a.none(), "inbox_bytes_max"_a,
          "message_bytes_max"_a)
      .def(
          "__init__", [](Worker* self, ReadyWorker& ready) { new (self) Worker(std::move(*ready.worker)); }, "ready"_a,
          nb::sig("def __init__(self, ready: _ReadyWorker) -> None"));
  bind_conversation(worker);
  worker
      .def(
          "wait", [](Worker& self, std::optional<double> timeout_s) { return self.wait(timeout_s); },
          "timeout"_a = nb::none(), nb::call_guard<nb::gil_scoped_release>(),
          nb::sig("def wait(self, timeout: float | None = None) -> int"),
          "Wait for the process to end, and return its exit code, or minus the signal that killed it. Messages that it "
          "still sends are kept for recv(). Raises TimeoutError if the process still runs after `timeout` seconds.")
      .def(
          "wait_async",
          [](nb::handle self, nb::handle timeout) { return attribute("miniray._async", "wait")(self, timeout); },
          "timeout"_a = nb::none(),
          nb::sig("def wait_async(self, timeout: float | None = None) -> "
                  "collections.abc.Coroutine[typing.Any, typing.Any, int]"),
          "wait() for asyncio.")
      .def("is_alive", &Worker::is_alive, "Return whether the process runs.")
      .def("kill", &Worker::kill, "signal"_a = SIGKILL, nb::sig("def kill(self, signal: int = 9) -> None"),
           "Send a signal. SIGKILL kills the worker and all processes that it started; another signal goes to the "
           "worker "
           "only.")
      .def(
          "close", [](Worker& self, double grace_s) { self.close(grace_s); },
          "grace_s"_a = grace_ms(limits::close_grace_ms) / 1000.0, nb::call_guard<nb::gil_scoped_release>(),
          "Close the conversation and end the process: the worker sees the end of the stream, has grace_s seconds to "
          "finish, and is killed if it has not finished. A failure of the worker that no call has raised is reported "
          "on standard error.")
      .def("stack", &Worker::stack, nb::call_guard<nb::gil_scoped_release>(),
           "Return what the worker is doing now: its state, and the Python stack of each of its threads (of a C++ "
           "worker, its C++ stack). The worker is not disturbed. The text is empty if the worker has ended.")
      // For miniray._async: closes both directions, because nothing more is read from the worker.
      .def("_end",
           [](Worker& self) {
             self.end();
             self.channel().close();
           })
      .def("__del__", close_dropped)
      .def_prop_ro("_closed", [](Worker& self) { return self.channel().closed(); })
      .def("_process_fileno", &Worker::process_fileno)
      .def_prop_ro("pid", &Worker::pid, "The worker's process number.")
      .def_prop_ro("name", &Worker::name, "The worker's name in errors and traces.");
  bind_calls(module, worker);
  module.def(
      "_discard",
      [](nb::handle object) {
        if (!nb::inst_ready(object)) return;  // the process was never started
        Worker* const worker = &nb::cast<Worker&>(object);
        const nb::gil_scoped_release released;
        close_all(std::span(&worker, 1), Closing::interrupt);
      },
      "worker"_a, "Close a worker whose __init__ has failed.");
  module.def(
      "_close_all",
      [](const std::vector<Worker*>& workers, int how) {
        const nb::gil_scoped_release released;
        close_all(workers, static_cast<Closing>(how));
      },
      "workers"_a, "how"_a, nb::sig("def _close_all(workers: list[typing.Any], how: int) -> None"));
  module.def(
      "wait_any", wait_any_objects, "workers"_a, "timeout"_a = nb::none(),
      nb::sig("def wait_any(workers: collections.abc.Sequence[typing.Any], timeout: float | None = None) -> "
              "list[typing.Any]"),
      "Wait until at least one of the workers has a message or has ended, and return all of these, in the given "
      "order; return an empty list after `timeout` seconds. Repeated calls with (nearly) the same workers cost time "
      "per ready worker, not per worker.");
}

}  // namespace miniray::python
