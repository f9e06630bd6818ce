// Bindings of NCCLConfig and TrainingGroup, for miniray/nccl.py and miniray/training_group.py.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "conversation.hpp"
#include "interop.hpp"
#include "miniray/nccl.hpp"
#include "miniray/training_group.hpp"

namespace miniray::python {
namespace {

using Fields = std::tuple<std::string, int, int, int, int, std::string>;  // the fields of an NCCLConfig, in order

NCCLConfig config_of(const Fields& fields) {
  const auto& [master_addr, master_port, world_size, rank, local_rank, interface] = fields;
  return {master_addr, master_port, world_size, rank, local_rank, interface};
}

// Returns dicts with the keyword arguments of Python's NCCLConfig.
nb::list to_dicts(const std::vector<NCCLConfig>& configs) {
  nb::list made;
  for (const NCCLConfig& config : configs) made.append(decode_object(encode(config)));
  return made;
}

}  // namespace

void bind_collective(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<TrainingGroup>(module, "TrainingGroup")
      .def(
          "__init__",
          [](TrainingGroup* self, Cluster& cluster, std::vector<Worker*> workers, double timeout, int master_port,
             bool progress) {
            const nb::gil_scoped_release released;
            new (self) TrainingGroup(cluster, std::move(workers), {timeout, master_port, progress, check_signals});
          },
          "cluster"_a, "workers"_a, "timeout"_a, "master_port"_a, "progress"_a, nb::keep_alive<1, 2>(),
          nb::sig("def __init__(self, cluster: Cluster, workers: collections.abc.Sequence[typing.Any], timeout: float, "
                  "master_port: int, progress: bool) -> None"))
      .def(
          "configs", [](TrainingGroup& self) { return to_dicts(self.configs()); },
          nb::sig("def configs(self) -> list[dict[str, typing.Any]]"))
      .def(
          "broadcast",
          [](TrainingGroup& self, nb::handle message, const std::string& codec) {
            const EncodedObject encoded(message, parse_codec(codec));
            const nb::gil_scoped_release released;
            self.broadcast(encoded.message());
          },
          "message"_a.none(), "codec"_a, nb::sig("def broadcast(self, message: object, codec: str) -> None"))
      .def(
          "scatter",
          [](TrainingGroup& self, const nb::list& messages, const std::string& codec) {
            std::vector<std::unique_ptr<EncodedObject>> encoded;
            std::vector<Message> all;
            for (const nb::handle message : messages) {
              encoded.push_back(std::make_unique<EncodedObject>(message, parse_codec(codec)));
              all.push_back(encoded.back()->message());
            }
            const nb::gil_scoped_release released;
            self.scatter(std::span<const Message>(all));
          },
          "messages"_a, "codec"_a, nb::sig("def scatter(self, messages: list[typing.Any], codec: str) -> None"))
      .def(
          "gather",
          [](TrainingGroup& self, std::optional<double> timeout) {
            std::vector<Message> messages;
            {
              const nb::gil_scoped_release released;
              messages = self.gather_messages({{}, timeout});
            }
            nb::list objects;
            for (const Message& message : messages) objects.append(decode_object(message));
            return objects;
          },
          "timeout"_a.none(), nb::sig("def gather(self, timeout: float | None) -> list[typing.Any]"));
  module.def("_check_nccl_config", [](const Fields& fields) { check_nccl_config(config_of(fields)); }, "fields"_a);
  module.def("_describe_nccl_config", [](const Fields& fields) { return describe(config_of(fields)); }, "fields"_a);
  module.def("_nccl_env", [](const Fields& fields) { return nccl_env(config_of(fields)); }, "fields"_a);
  module.def(
      "_create_nccl_configs",
      [](const std::string& master_addr, const std::vector<std::pair<std::string, int>>& nodes, int master_port) {
        return to_dicts(create_nccl_configs(master_addr, nodes, master_port));
      },
      "master_addr"_a, "nodes"_a, "master_port"_a,
      nb::sig("def _create_nccl_configs(master_addr: str, nodes: collections.abc.Sequence[tuple[str, int]], "
              "master_port: int) -> list[dict[str, typing.Any]]"));
}

}  // namespace miniray::python
