// The base class of miniray.WorkerServer, whose Python part is in miniray/worker_server.py.
#include "miniray/worker_server.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <string.h>

#include "base/system.hpp"
#include "interop.hpp"
#include "key.hpp"
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

void write_key(const KeyHandle& self, int descriptor) {
  const Secret digits = self.key->secret_hex();
  system::send_all(descriptor, digits.text());
}

KeyHandle read_key_from(int descriptor) {
  const Secret digits(Key::hex_digits);
  {
    const nb::gil_scoped_release released;
    system::receive_all(descriptor, std::as_writable_bytes(digits.get()));
  }
  return {std::make_shared<const Key>(Key::from_hex(digits.text(), "the process that made the pool"))};
}

// Python keeps the environment in bytes objects of its own, which os.environ and the module posix share.
void wipe_bytes(const nb::bytes& object) { explicit_bzero(PyBytes_AS_STRING(object.ptr()), object.size()); }

}  // namespace

std::shared_ptr<const Key> key_from(nb::handle argument) {
  if (nb::isinstance<KeyHandle>(argument)) return nb::cast<const KeyHandle&>(argument).key;
  Py_ssize_t size = 0;
  const char* const digits = PyUnicode_AsUTF8AndSize(argument.ptr(), &size);
  if (digits == nullptr) throw nb::python_error();
  if (size == 0) return nullptr;
  return std::make_shared<const Key>(Key::from_hex({digits, static_cast<std::size_t>(size)}, "the argument key"));
}

void set_server_options(WorkerServerOptions& options, bool pickle) {
  options.find_work = work_finder();
  options.on_interrupt = check_signals;
  options.on_interrupt_in_worker = check_signals;
  options.keep_interrupt_handler = true;  // Python's own, which raises KeyboardInterrupt
  // Looked up before the forks, and never destroyed, because the options may be destroyed without the GIL.
  static const auto* begin = new nb::object(attribute("miniray._functions", "begin_work"));
  options.on_start_in_worker = [pickle](const std::map<std::string, std::string>& environment) {
    (*begin)(environment, pickle);
  };
  options.fork = fork_options();
}

void bind_worker_server(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<KeyHandle>(module, "_Key", "A key that nobody can read, print or pickle.")
      .def_static("random", [] { return KeyHandle{std::make_shared<const Key>(Key::random())}; })
      .def_static("read_from", read_key_from, "descriptor"_a, "Wait for the key that another process writes.")
      .def("write_to", write_key, "descriptor"_a);
  module.def("_wipe_bytes", wipe_bytes, "object"_a, "Overwrite the bytes of an object that nobody needs any more.");
  module.def("_wipe_key_from_environment", &Key::wipe_environment,
             "Overwrite MINIRAY_KEY in the environment of the process, of which Python has a copy.");
  nb::class_<WorkerServer>(module, "WorkerServer", nb::dynamic_attr())
      .def(
          "__init__",
          [](WorkerServer* self, const std::string& host, int port, nb::object work, std::size_t num_workers,
             nb::handle key, std::uint64_t message_bytes_max, std::optional<bool> encrypt, bool pickle) {
            WorkerServerOptions options;
            options.encrypt = encrypt;
            options.num_workers = num_workers;
            options.own_key = key_from(key);
            options.message_bytes_max = message_bytes_max;
            set_server_options(options, pickle);
            WorkFunction function;
            if (!work.is_none()) function = as_work_function(nb::cast<nb::callable>(work));
            new (self) WorkerServer(host, port, std::move(function), std::move(options));
          },
          "host"_a, "port"_a, "work"_a.none(), "num_workers"_a, "key"_a,
          "message_bytes_max"_a = limits::message_bytes_max, "encrypt"_a.none() = nb::none(), "pickle"_a = true,
          nb::sig("def __init__(self, host: str, port: int, work: collections.abc.Callable[[Handle], typing.Any] | "
                  "None, num_workers: int, key: str | _Key, message_bytes_max: int = ..., encrypt: bool | None = None, "
                  "pickle: bool = True) -> None"))
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
