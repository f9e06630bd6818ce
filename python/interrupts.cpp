// Handles Ctrl-C: it is noted at the moment of the signal, and raised where Python code can catch it.
#include <unistd.h>

#include <csignal>

#include "base/clock.hpp"
#include "base/grace.hpp"
#include "interop.hpp"
#include "miniray/limits.hpp"

namespace miniray::python {
namespace {

// Global, because signals belong to the whole process.
std::atomic<std::int64_t> interrupted_at_ns = 0;
std::atomic<bool> raises = false;  // whether Python's own handler is set, which raises KeyboardInterrupt
std::atomic<bool> deferred = false;
std::atomic<bool> came_while_deferred = false;
struct sigaction python_handler;

// Python raises KeyboardInterrupt between any two steps of a program, where no code of ours sees it. So the signal
// itself is noted, before Python's handler gets it.
void on_signal(int number, siginfo_t* info, void* context) {
  if (raises) note_interrupt();
  if (deferred) {
    came_while_deferred = true;
  } else if ((python_handler.sa_flags & SA_SIGINFO) != 0) {
    python_handler.sa_sigaction(number, info, context);
  } else {
    python_handler.sa_handler(number);
  }
}

bool in_main_thread() { return gettid() == getpid(); }

}  // namespace

void note_interrupt() { interrupted_at_ns = now_ns(); }

bool just_interrupted(std::int64_t since_ns) {
  const std::int64_t at_ns = interrupted_at_ns;
  return at_ns != 0 && at_ns >= since_ns && now_ns() - at_ns < grace_ms(limits::interrupt_memory_ms) * 1'000'000LL;
}

// Python's signal.signal() replaces our handler, so this is called again and again. A handler that another library has
// installed since stays, because it may call ours.
void watch_interrupts() {
  struct sigaction now = {};
  if (sigaction(SIGINT, nullptr, &now) != 0 || now.sa_sigaction == on_signal) return;
  if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) return;
  if (python_handler.sa_handler != nullptr && now.sa_handler != python_handler.sa_handler) return;
  const nb::object handler = attribute("_signal", "getsignal")(SIGINT);
  if (PyCallable_Check(handler.ptr()) == 0) return;
  raises = handler.is(attribute("_signal", "default_int_handler"));
  python_handler = now;
  now.sa_flags |= SA_SIGINFO;
  now.sa_sigaction = on_signal;
  sigaction(SIGINT, &now, nullptr);
}

void defer_interrupts() {
  if (!in_main_thread()) return;  // Python's handlers run in the main thread only
  watch_interrupts();
  deferred = true;
}

bool allow_interrupts() {
  if (!in_main_thread()) return false;
  deferred = false;
  return came_while_deferred.exchange(false);
}

// Python's signal handlers run in the main thread only. Another thread must not take the GIL here: when the program
// ends, Python unwinds that thread with pthread_exit, and C++ code that catches all exceptions would then abort.
void check_signals() {
  if (!in_main_thread()) return;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  note_interrupt();
  throw nb::python_error();
}

void bind_interrupts(nb::module_& module) {
  module.def("_note_interrupt", note_interrupt);
  module.def("_just_interrupted", just_interrupted, nb::arg("since_ns") = 0);
  module.def("_watch_interrupts", watch_interrupts);
}

}  // namespace miniray::python
