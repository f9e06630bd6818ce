// The base class of miniray.WorkerServer, whose Python part is in miniray/worker_server.py.
#include "miniray/worker_server.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include "interop.hpp"
#include "miniray/error.hpp"
#include "work_function.hpp"

namespace miniray::python {

namespace {

std::function<WorkFunction(const std::string&)> work_finder() {
  return [](const std::string& name) {
    const nb::gil_scoped_acquire gil;
    try {
      return as_work_function(nb::cast<nb::callable>(attribute("miniray._functions", "find")(name)));
    } catch (nb::python_error& error) {
      // The core must not see a Python exception, so it becomes a UsageError whose text has the traceback.
      const nb::object text = attribute("miniray._functions", "explain")(name, error.value());
      // Ctrl-C during a long import is meant for the server, not for the connection: it is raised again in the server.
      if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
      throw UsageError(nb::cast<std::string>(text));
    }
  };
}

}  // namespace

void set_server_options(WorkerServerOptions& options) {
  options.find_work = work_finder();
  options.on_interrupt = check_signals;
  options.on_interrupt_in_worker = check_signals;
  options.keep_interrupt_handler = true;  // Python's own, which raises KeyboardInterrupt
  // Looked up before the forks, and never destroyed, because the options may be destroyed without the GIL.
  static const auto* begin = new nb::object(attribute("miniray._functions", "begin_work"));
  options.on_start_in_worker = [](const std::map<std::string, std::string>& environment) { (*begin)(environment); };
  options.fork = fork_options();
}

void bind_worker_server(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<WorkerServer>(module, "WorkerServer", nb::dynamic_attr())
      .def(
          "__init__",
          [](WorkerServer* self, const std::string& host, int port, nb::object work, std::size_t num_workers,
             const std::string& key, std::uint64_t message_bytes_max) {
            WorkerServerOptions options;
            options.num_workers = num_workers;
            options.key = key;
            options.message_bytes_max = message_bytes_max;
            set_server_options(options);
            WorkFunction function;
            if (!work.is_none()) function = as_work_function(nb::cast<nb::callable>(work));
            new (self) WorkerServer(host, port, std::move(function), std::move(options));
          },
          "host"_a, "port"_a, "work"_a.none(), "num_workers"_a, "key"_a,
          "message_bytes_max"_a = limits::message_bytes_max,
          nb::sig("def __init__(self, host: str, port: int, work: collections.abc.Callable[[Handle], typing.Any] | "
                  "None, num_workers: int, key: str, message_bytes_max: int = ...) -> None"))
      .def(
          "serve_forever", &WorkerServer::serve_forever, nb::call_guard<nb::gil_scoped_release>(),
          "Serve until stop() is called or a signal handler raises an exception (Ctrl-C); then end the workers in good "
          "order.")
      .def(
          "_stop_when_readable",
          [](WorkerServer& self, int descriptor) { self.on_ready(descriptor, [&self] { self.stop(); }); },
          "descriptor"_a)
      .def("stop", &WorkerServer::stop, "Make serve_forever() return within a second. Any thread may call it.")
      .def_prop_ro("port", &WorkerServer::port, "The port that the server listens on.")
      .def_prop_ro("worker_count", &WorkerServer::worker_count, "How many workers are alive.");
}

}  // namespace miniray::python
