// The extension module: everything that the package's Python files build on.
#include "base/crash.hpp"
#include "interop.hpp"
#include "miniray/version.hpp"

NB_MODULE(_core, module) {
  using namespace miniray::python;
  module.doc() = "The C++ core of MiniRay. The package `miniray` is its public face.";
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
  bind_supervision(module);
  bind_pool(module);
  bind_command(module);
  explain_mistakes(module);  // last: it visits what is bound
  // A script that ends with a worker in a global variable is not a leak worth a warning.
  nb::set_leak_warnings(false);
}
