// Translates the core's exceptions to Python's: to the classes of miniray/errors.py, or to built-in ones such as
// TimeoutError, OSError and TypeError.
#include <nanobind/stl/string.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "interop.hpp"
#include "miniray/cluster.hpp"
#include "miniray/error.hpp"
#include "miniray/group.hpp"
#include "miniray/training_group.hpp"

namespace miniray::python {
namespace {

// The text may quote bytes of a peer, which need not be UTF-8.
void raise(const nb::object& type, const Error& error) {
  const std::string_view text = error.what();
  const nb::object message =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  PyErr_SetObject(type.ptr(), message.ptr());
}

void raise_package_error(const char* name, const Error& error) { raise(attribute("miniray.errors", name), error); }

void raise_worker_error(const WorkerError& error) {
  nb::object made = attribute("miniray.errors", "WorkerError")(error.what());
  made.attr("worker") = error.worker();
  made.attr("type") = error.type();
  made.attr("message") = error.message();
  made.attr("traceback") = error.traceback();
  PyErr_SetObject(made.type().ptr(), made.ptr());
}

// Python's enum has no real-time signals; these stay numbers.
nb::object signal_object(int number) {
  try {
    return attribute("signal", "Signals")(number);
  } catch (nb::python_error&) {
    return nb::int_(number);
  }
}

}  // namespace

nb::object died_object(const WorkerDied& died) {
  const DeathCertificate& certificate = died.certificate();
  const bool restarted = dynamic_cast<const WorkerRestarted*>(&died) != nullptr;
  nb::object made = attribute("miniray.errors", restarted ? "WorkerRestarted" : "WorkerDied")(died.what());
  made.attr("worker") = certificate.worker;
  made.attr("cause") = certificate.cause();
  made.attr("exit_code") = certificate.exit_code >= 0 ? nb::cast(certificate.exit_code) : nb::none();
  made.attr("signal") = certificate.signal != 0 ? signal_object(certificate.signal) : nb::none();
  made.attr("out_of_memory") = certificate.out_of_memory;
  made.attr("peak_bytes") = certificate.peak_bytes;
  made.attr("stack") = certificate.stack;
  made.attr("unreachable") = !certificate.lost.empty();
  made.attr("last_output") = nb::str(certificate.last_output.c_str());
  made.attr("last_messages") = certificate.last_messages;
  return made;
}

namespace {

void raise_worker_died(const WorkerDied& died) {
  const nb::object made = died_object(died);
  PyErr_SetObject(made.type().ptr(), made.ptr());
}

void raise_cluster_error(const ClusterError& error) {
  nb::object made = attribute("miniray.errors", "ClusterError")(error.what());
  nb::dict failures;
  for (const ClusterError::Failure& failure : error.failures()) failures[failure.node.c_str()] = failure.why;
  made.attr("failures") = failures;
  PyErr_SetObject(made.type().ptr(), made.ptr());
}

void raise_group_error(const GroupError& error) {
  nb::object made = attribute("miniray.errors", "GroupError")(error.what());
  if (error.rank()) made.attr("rank") = *error.rank();
  nb::dict failures;
  for (const auto& [rank, text] : error.failures()) failures[nb::int_(rank)] = text;
  made.attr("failures") = failures;
  PyErr_SetObject(made.type().ptr(), made.ptr());
}

void raise_system_error(const SystemError& error) {
  nb::object made = nb::borrow(PyExc_OSError)(error.error_number(), error.what());
  PyErr_SetObject(made.type().ptr(), made.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const WorkerDied& died) {
    raise_worker_died(died);
  } catch (const WorkerError& error) {
    raise_worker_error(error);
  } catch (const EndOfStream& error) {
    raise_package_error("EndOfStream", error);
  } catch (const TimeoutError& error) {
    raise(nb::borrow(PyExc_TimeoutError), error);
  } catch (const MessageTooLarge& error) {
    raise_package_error("MessageTooLarge", error);
  } catch (const InboxFull& error) {
    raise_package_error("InboxFull", error);
  } catch (const ProtocolError& error) {
    raise_package_error("ProtocolError", error);
  } catch (const ClusterError& error) {
    raise_cluster_error(error);
  } catch (const GroupError& error) {
    raise_group_error(error);
  } catch (const GroupBroken& error) {
    raise_package_error("GroupBroken", error);
  } catch (const Refused& error) {
    raise_package_error("Refused", error);
  } catch (const UnknownHost& error) {
    raise_package_error("UnknownHost", error);
  } catch (const Unsendable& error) {
    raise(nb::borrow(PyExc_TypeError), error);
  } catch (const UsageError& error) {
    raise_package_error("UsageError", error);
  } catch (const SystemError& error) {
    raise_system_error(error);
  } catch (const Error& error) {
    raise_package_error("MiniRayError", error);
  }
}

}  // namespace

nb::object attribute(const char* module, const char* name) { return nb::module_::import_(module).attr(name); }

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace miniray::python
