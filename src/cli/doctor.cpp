// `miniray doctor`: what would make a training run hang or fail, before it starts.
#include "miniray/doctor.hpp"

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "cli/subcommands.hpp"
#include "wire/json_text.hpp"

namespace miniray::cli {
namespace {

struct Options {
  std::vector<std::string> nodes{"localhost"};
  std::vector<int> ports{limits::master_port};
  int num_workers = 1, base_port = 0;
  double gpus_per_worker = 0;
  std::string python_bin, ssh_key;
  bool json = false;
};

CheckReport examine(const Options& options, const Surroundings& surroundings) {
  std::vector<NodeConfig> nodes;
  for (const std::string& host : options.nodes) {
    NodeConfig& node = nodes.emplace_back(NodeConfig{host});
    node.num_workers = options.num_workers;
    node.base_port = options.base_port;
    node.gpus_per_worker = options.gpus_per_worker;
    node.python_bin = options.python_bin;
    node.ssh_key = options.ssh_key;
  }
  ClusterOptions cluster;
  cluster.program = ServerProgram::python(surroundings.python);
  cluster.attendant = surroundings.attendant;
  cluster.worker.on_interrupt = surroundings.on_interrupt;
  CheckOptions what;
  what.ports = options.ports;
  what.language_probe = "miniray.doctor.describe_python";
  return check(nodes, cluster, what);
}

}  // namespace

void add_doctor(CLI::App& app, const Surroundings& surroundings, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("doctor", "Find what would make a training run hang or fail, on this machine or on several");
  command->footer(
      "It checks every pair of nodes, ports, names, versions, clocks, GPUs, shared memory and limits.\n"
      "Each finding has its node, its cause and a cure.\n"
      "Exit code 0: no problem (there may be warnings), 1: a problem, or the check itself failed,\n"
      "2: the arguments make no sense, 130: Ctrl-C.");
  auto options = std::make_shared<Options>();
  command->add_option("nodes", options->nodes, "As you would give them to ssh; without any, this machine");
  command->add_option("--port", options->ports, "Must be free, and open between all nodes; may be given several times")
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--workers", options->num_workers, "On each node")->capture_default_str();
  command->add_option("--gpus-per-worker", options->gpus_per_worker,
                      "Each node must have enough: too few, or no GPU, is a problem");
  command->add_option("--base-port", options->base_port, "Where the nodes' servers will listen; 0: any that is free");
  command->add_option("--python", options->python_bin, "The interpreter on the nodes, which has MiniRay");
  command->add_option("--ssh-key", options->ssh_key, "A file");
  command->add_flag("--json", options->json, "One JSON object, for programs");
  command->callback([options, surroundings, &exit_code] {
    const CheckReport report = examine(*options, surroundings);
    std::printf("%s", options->json ? (write_json(report.value()) + "\n").c_str() : report.text().c_str());
    std::fflush(stdout);
    exit_code = report.healthy() ? 0 : 1;
  });
}

}  // namespace miniray::cli
