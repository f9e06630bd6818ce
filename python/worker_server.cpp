// The part of miniray.WorkerServer that is in the core; miniray/worker_server.py has the rest.
#include "miniray/worker_server.hpp"

#include <nanobind/stl/string.h>
#include <unistd.h>

#include "interop.hpp"
#include "miniray/error.hpp"
#include "work_function.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace miniray::python {

std::function<WorkFunction(const std::string&)> work_finder() {
  return [](const std::string& name) {
    const nb::gil_scoped_acquire gil;
    try {
      return as_work_function(nb::cast<nb::callable>(attribute("miniray._functions", "find")(name)));
    } catch (nb::python_error& error) {
      // The exception's text has the traceback; it leaves here without any of Python's own.
      const nb::object text = attribute("miniray._functions", "explain")(name, error.value());
      throw UsageError(nb::cast<std::string>(text));
    }
  };
}

void bind_worker_server(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<WorkerServer>(module, "WorkerServer", nb::dynamic_attr())
      .def(
          "__init__",
          [](WorkerServer* self, const std::string& host, int port, nb::object work, std::size_t num_workers,
             const std::string& key) {
            WorkerServerOptions options;
            options.num_workers = num_workers;
            options.key = key;
            options.find_work = work_finder();
            options.on_interrupt = check_signals;
            options.on_interrupt_in_worker = check_signals;
            options.fork = fork_options();
            WorkFunction function;
            if (!work.is_none()) function = as_work_function(nb::cast<nb::callable>(work));
            new (self) WorkerServer(host, port, std::move(function), std::move(options));
          },
          "host"_a, "port"_a, "work"_a.none(), "num_workers"_a, "key"_a,
          nb::sig("def __init__(self, host: str, port: int, work: collections.abc.Callable[[Handle], typing.Any] | "
                  "None, num_workers: int, key: str) -> None"))
      .def("serve_forever", &WorkerServer::serve_forever, nb::call_guard<nb::gil_scoped_release>(),
           "Serve until an exception comes out of a signal handler (Ctrl-C); then end the workers in good order.")
      .def_prop_ro("port", &WorkerServer::port, "The port that it listens on.")
      .def_prop_ro("worker_count", &WorkerServer::worker_count, "How many workers live.");
  module.def(
      "_environment",
      [] {
        nb::dict all;
        for (char** entry = environ; *entry != nullptr; ++entry) {
          const std::string_view text = *entry;
          const std::size_t equals = text.find('=');
          if (equals == std::string_view::npos) continue;
          const std::string_view value = text.substr(equals + 1);
          all[nb::bytes(text.data(), equals)] = nb::bytes(value.data(), value.size());
        }
        return all;
      },
      "The process's environment as it is now, which os.environ need not know.");
}

}  // namespace miniray::python
