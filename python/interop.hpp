// What the files of the bindings share: translation of errors, handling of signals, and options of workers.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "miniray/message.hpp"
#include "miniray/restart_policy.hpp"
#include "miniray/worker.hpp"

namespace nb = nanobind;

namespace miniray::python {

/// The on_interrupt of the core's waits: runs Python's signal handlers, if this is the main thread, and throws what
/// they raise.
void check_signals();
/// Records that Ctrl-C, or an exception of another signal handler, has come now.
void note_interrupt();
/// Returns whether note_interrupt() was called within limits::interrupt_memory_ms, and not before since_ns.
bool just_interrupted(std::int64_t since_ns = 0);
/// From now on, every Ctrl-C that raises KeyboardInterrupt is noted, until the program sets a handler of its own.
void watch_interrupts();
/// Defers Ctrl-C in the main thread until allow_interrupts(), which returns whether it came meanwhile.
void defer_interrupts();
[[nodiscard]] bool allow_interrupts();

/// Returns a miniray.WorkerDied with all fields of the certificate.
nb::object died_object(const miniray::WorkerDied& died);

/// Returns an attribute of a module, such as ("miniray._arrays", "build"). Imports the module if necessary.
nb::object attribute(const char* module, const char* name);

/// The fields of a miniray.RestartPolicy, in their order.
using PolicyFields = std::tuple<int, double, double, double>;
[[nodiscard]] RestartPolicy policy_of(const PolicyFields& fields);

/// Returns what a Python process must do around a fork.
ForkOptions fork_options();
/// Returns the options of a worker that Python code starts or connects to.
WorkerOptions worker_options(const std::string& name, const std::string& codec, bool shared_memory,
                             std::optional<int> spin_us, std::uint64_t inbox_bytes_max,
                             std::uint64_t message_bytes_max);

void bind_errors(nb::module_& module);
void bind_interrupts(nb::module_& module);
void bind_array(nb::module_& module);
void bind_channel(nb::module_& module);
void bind_handle(nb::module_& module);
void bind_worker(nb::module_& module);
void bind_calls(nb::module_& module, nb::class_<Worker>& worker);
void bind_remote_worker(nb::module_& module);
void bind_worker_server(nb::module_& module);
void bind_cluster(nb::module_& module);
void bind_hardware(nb::module_& module);
void bind_command(nb::module_& module);
void bind_pool(nb::module_& module);
void bind_collective(nb::module_& module);
void bind_group(nb::module_& module);
void bind_supervision(nb::module_& module);
void bind_limits(nb::module_& module);

/// Raises TypeError with this text, followed by the value as errors show it ("the int 3").
[[noreturn]] void refuse(const std::string& text, nb::handle value);

/// Makes all functions that are bound so far refuse wrong arguments with the texts of miniray/_mistakes.py.
void explain_mistakes(nb::module_& module);

}  // namespace miniray::python
