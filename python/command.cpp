// The miniray command, for those who have installed the package.
#include "cli/command.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "interop.hpp"

namespace miniray::python {

void bind_command(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "_run_command",
      [](const std::vector<std::string>& arguments, const std::string& python,
         const std::vector<std::string>& attendant) {
        const nb::gil_scoped_release released;
        return cli::run_command(arguments, {python, attendant, check_signals, {}});
      },
      "arguments"_a, "python"_a, "attendant"_a);
}

}  // namespace miniray::python
