// Binding of the miniray command line, for miniray/__main__.py.
#include "cli/command.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cli/subcommands.hpp"
#include "interop.hpp"

namespace miniray::python {

void bind_command(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "_run_command",
      [](const std::vector<std::string>& arguments, const std::string& python,
         const std::vector<std::string>& attendant) {
        const nb::gil_scoped_release released;
        // Only for --help: miniray/__main__.py runs this subcommand itself.
        const auto list_more = [](CLI::App& app) {
          app.add_subcommand("worker-server", cli::worker_server_description);
        };
        return cli::run_command(arguments, {python, attendant, check_signals, list_more});
      },
      "arguments"_a, "python"_a, "attendant"_a);
  module.def("_who_can_connect", &cli::who_can_connect, "host"_a);
}

}  // namespace miniray::python
