// Bindings of Cluster, of the doctor's check, and of the servers that a cluster starts, for miniray/cluster.py.
#include "miniray/cluster.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "cluster/probe.hpp"
#include "conversation.hpp"
#include "launch/attendant.hpp"
#include "launch/stdio_server.hpp"
#include "miniray/doctor.hpp"
#include "miniray/error.hpp"
#include "ready_worker.hpp"
#include "wire/json_text.hpp"
#include "work_function.hpp"

namespace miniray::python {
namespace {

using Node = std::tuple<std::string, int, int, double, std::string, std::string, std::map<std::string, std::string>,
                        std::string>;
using Files = std::vector<std::pair<std::string, std::string>>;

NodeConfig node_config(const Node& node) {
  NodeConfig config;
  std::tie(config.host, config.num_workers, config.base_port, config.gpus_per_worker, config.ssh_key, config.python_bin,
           config.env, config.workdir) = node;
  return config;
}

ClusterOptions cluster_options(bool ship_code, bool tunnel, std::optional<bool> encrypt, const std::string& output,
                               bool progress, double start_timeout_s, double unreachable_s, const std::string& codec,
                               std::optional<int> spin_us, std::uint64_t inbox_bytes_max,
                               std::uint64_t message_bytes_max) {
  ClusterOptions options;
  options.ship_code = ship_code;
  options.tunnel = tunnel;
  options.encrypt = encrypt;
  options.output = output;
  options.progress = progress;
  options.start_timeout_s = start_timeout_s;
  options.unreachable_s = unreachable_s;
  options.worker = worker_options("", codec, false, spin_us, inbox_bytes_max, message_bytes_max);
  return options;
}

int serve_stdio_for_python() {
  StdioProgram program;
  program.own_functions = {{probe_function, run_probe}};
  program.prepare = [](const std::filesystem::path& folder, const StdioProgram::Setup& setup) {
    const nb::gil_scoped_acquire gil;
    attribute("miniray._shipping", "prepare")(folder.string(), write_json(setup.program), setup.environment);
  };
  set_server_options(program.server);
  const nb::gil_scoped_release released;
  return serve_stdio(std::move(program));
}

// The options that miniray/cluster.py passes to Cluster and to _check, as a tuple.
using Options = std::tuple<bool, bool, std::optional<bool>, std::string, bool, double, double, std::string,
                           std::optional<int>, std::uint64_t, std::uint64_t>;

ClusterOptions all_options(const std::string& python, const std::vector<std::string>& attendant,
                           const std::string& program, const Options& given) {
  ClusterOptions options = std::apply(cluster_options, given);
  options.attendant = attendant;
  options.program = program.empty() ? ServerProgram::python(python) : ServerProgram::cpp(program);
  return options;
}

std::vector<NodeConfig> node_configs(const std::vector<Node>& nodes) {
  std::vector<NodeConfig> configs;
  for (const Node& node : nodes) configs.push_back(node_config(node));
  return configs;
}

}  // namespace

void bind_cluster(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Cluster>(module, "Cluster")
      .def(
          "__init__",
          [](Cluster* self, const std::vector<Node>& nodes, const std::string& python,
             const std::vector<std::string>& attendant, const std::string& program, const Options& given,
             const Files& files, const std::string& setup) {
            ClusterOptions options = all_options(python, attendant, program, given);
            for (const auto& [path, source] : files) options.program.files.push_back({path, source});
            options.program.setup = read_json_text(setup);
            new (self) Cluster(node_configs(nodes), std::move(options));
          },
          "nodes"_a, "python"_a, "attendant"_a, "program"_a, "options"_a, "files"_a, "setup"_a)
      .def("launch_servers", &Cluster::launch_servers, "work_fn"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "connect_to_servers",
          [](Cluster& self, const std::string& work_fn, std::optional<int> num_workers,
             std::optional<double> gpus_per_worker, const std::vector<int>& gpus, bool pin_cpus,
             const std::vector<std::size_t>& nodes) {
            std::vector<Worker> workers;
            {
              const nb::gil_scoped_release released;
              workers = self.connect_to_servers(work_fn, {num_workers, gpus_per_worker, gpus, pin_cpus, nodes});
            }
            return wrap_ready(std::move(workers));
          },
          "work_fn"_a, "num_workers"_a.none(), "gpus_per_worker"_a.none(), "gpus"_a, "pin_cpus"_a, "nodes"_a,
          nb::sig("def connect_to_servers(self, work_fn: str, num_workers: int | None, gpus_per_worker: float | None, "
                  "gpus: collections.abc.Sequence[int], pin_cpus: bool, nodes: collections.abc.Sequence[int]) -> "
                  "list[_ReadyWorker]"))
      .def(
          "relaunch",
          [](Cluster& self, std::size_t node, std::optional<double> timeout_s) { self.relaunch(node, timeout_s); },
          "node"_a, "timeout"_a.none(), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "replace",
          [](Cluster& self, Worker& worker, std::optional<std::size_t> node) {
            std::vector<Worker> made;
            {
              const nb::gil_scoped_release released;
              made.push_back(self.replace(worker, node));
            }
            return wrap_ready(std::move(made));
          },
          "worker"_a, "node"_a.none(),
          nb::sig("def replace(self, worker: typing.Any, node: int | None) -> list[_ReadyWorker]"))
      .def("open_link", &Cluster::open_link, "node"_a, nb::call_guard<nb::gil_scoped_release>(),
           nb::sig("def open_link(self, node: int) -> typing.Any"))
      .def("node_of", &Cluster::node_of, "worker"_a, nb::sig("def node_of(self, worker: typing.Any) -> int"))
      .def("position_of", &Cluster::position_of, "node"_a)
      .def(
          "broadcast",
          [](Cluster& self, const std::vector<Worker*>& workers, nb::handle message, const std::string& codec) {
            const EncodedObject encoded(message, parse_codec(codec));
            const nb::gil_scoped_release released;
            self.broadcast(workers, encoded.message());
          },
          "workers"_a, "message"_a.none(), "codec"_a,
          nb::sig("def broadcast(self, workers: list[typing.Any], message: object, codec: str) -> None"))
      .def_static(
          "gather",
          [](const std::vector<Worker*>& workers, std::optional<double> timeout) {
            std::vector<Message> messages;
            {
              const nb::gil_scoped_release released;
              messages = Cluster::gather(workers, {{}, timeout});
            }
            nb::list objects;
            for (const Message& message : messages) objects.append(decode_object(message));
            return objects;
          },
          "workers"_a, "timeout"_a.none(),
          nb::sig("def gather(workers: list[typing.Any], timeout: float | None) -> list[typing.Any]"))
      .def(
          "stop",
          [](Cluster& self, const std::vector<Worker*>& workers, int how) {
            const nb::gil_scoped_release released;
            self.stop(workers, static_cast<Closing>(how));
          },
          "workers"_a, "how"_a, nb::sig("def stop(self, workers: list[typing.Any], how: int) -> None"))
      .def(
          "servers",
          [](Cluster& self) {
            nb::list all;
            for (const Cluster::Server& server : self.servers())
              all.append(nb::make_tuple(server.node, server.host, server.port, server.pid));
            return all;
          },
          nb::sig("def servers(self) -> list[tuple[str, str, int, int]]"));
  module.def(
      "_check",
      [](const std::vector<Node>& nodes, const std::string& python, const std::vector<std::string>& attendant,
         const std::string& program, const Options& given, const std::vector<int>& ports, bool base_ports) {
        CheckReport report;
        {
          const nb::gil_scoped_release released;
          report = check(node_configs(nodes), all_options(python, attendant, program, given),
                         {ports, base_ports, program.empty() ? "miniray.doctor.describe_python" : ""});
        }
        return nb::make_tuple(report.text(), decode_object(encode(report.value())));
      },
      "nodes"_a, "python"_a, "attendant"_a, "program"_a, "options"_a, "ports"_a, "base_ports"_a,
      nb::sig("def _check(nodes: collections.abc.Sequence[typing.Any], python: str, attendant: "
              "collections.abc.Sequence[str], program: str, options: tuple[typing.Any, ...], ports: "
              "collections.abc.Sequence[int], base_ports: bool) -> tuple[str, dict[str, typing.Any]]"));
  module.def("_attend", attend, "control"_a, "lifeline"_a, nb::call_guard<nb::gil_scoped_release>());
  module.def("_serve_stdio", serve_stdio_for_python);
}

}  // namespace miniray::python
