// The extension module miniray._core, on which the package's Python files are built.
#include "base/crash.hpp"
#include "interop.hpp"
#include "miniray/version.hpp"

NB_MODULE(_core, module) {
  using namespace miniray::python;
  module.doc() = "The C++ core of MiniRay. Use the package `miniray`, which is its public interface.";
  module.attr("version") = miniray::version;
  module.attr("_stack_signal") = miniray::stack_signal();
  bind_errors(module);
  bind_interrupts(module);
  bind_limits(module);
  bind_array(module);
  bind_channel(module);
  bind_handle(module);
  bind_worker(module);
  bind_remote_worker(module);
  bind_worker_server(module);
  bind_cluster(module);
  bind_hardware(module);
  bind_collective(module);
  bind_group(module);
  bind_supervision(module);
  bind_pool(module);
  bind_command(module);
  explain_mistakes(module);  // last, because it wraps the functions that are bound
  // A script that ends with a worker in a global variable would get a warning about a leak.
  nb::set_leak_warnings(false);
}
