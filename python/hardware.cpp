// Bindings of hardware discovery and CPU affinity, for miniray/hardware.py.
#include "miniray/hardware.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "interop.hpp"

namespace miniray::python {

void bind_hardware(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "_discover_machine",
      [] {
        const Machine machine = discover_machine();
        nb::list gpus, numa_nodes;
        for (const Gpu& gpu : machine.gpus)
          gpus.append(nb::make_tuple(gpu.index, gpu.name, gpu.uuid, gpu.pci_address, gpu.memory_bytes, gpu.numa_node,
                                     gpu.visible_as));
        for (const NumaNode& node : machine.numa_nodes) numa_nodes.append(nb::make_tuple(node.index, node.cpus));
        return nb::make_tuple(gpus, numa_nodes, machine.driver_version, machine.notes);
      },
      nb::sig("def _discover_machine() -> tuple[list[tuple[int, str, str, str, int, int, str]], "
              "list[tuple[int, list[int]]], str, list[str]]"));
  module.def("_get_gpu_numa_node", get_gpu_numa_node, "gpu"_a);
  module.def("_set_gpu_affinity", set_gpu_affinity, "gpu"_a);
}

}  // namespace miniray::python
