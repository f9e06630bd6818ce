// What the binding files share: errors on their way to Python, signals on their way to waits, and the GIL.
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

/// For the core's waits: runs Python's signal handlers in the main thread, and throws what they raise.
void check_signals();
/// Ctrl-C, or another exception of a signal's handler, has come; and whether one has come just now, and since then.
void note_interrupt();
bool just_interrupted(std::int64_t since_ns = 0);
/// From now on, Ctrl-C is noted wherever it raises KeyboardInterrupt, until the program sets a handler of its own.
void watch_interrupts();
/// Between these two, Ctrl-C in the main thread is put off. The second tells whether it came.
void put_off_interrupts();
[[nodiscard]] bool allow_interrupts();

/// A miniray.WorkerDied with all that is known.
nb::object died_object(const miniray::WorkerDied& died);

/// An attribute of a module of the package, such as ("miniray._arrays", "build").
nb::object attribute(const char* module, const char* name);

/// The fields of a miniray.RestartPolicy, in order.
using PolicyFields = std::tuple<int, double, double, double>;
[[nodiscard]] RestartPolicy policy_of(const PolicyFields& fields);

/// What a Python process must do around a fork, and the options of a worker that it starts or connects to.
ForkOptions fork_options();
WorkerOptions worker_options(const std::string& name, const std::string& codec, bool shared_memory,
                             std::optional<int> spin_us, std::uint64_t inbox_bytes_max);

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
void bind_supervision(nb::module_& module);
void bind_limits(nb::module_& module);

/// Raises TypeError: this text, followed by the value as errors show it ("the int 3").
[[noreturn]] void refuse(const std::string& text, nb::handle value);

/// From now on, wrong arguments to what is bound are refused in Python's words (miniray/_mistakes.py).
void explain_mistakes(nb::module_& module);

}  // namespace miniray::python
