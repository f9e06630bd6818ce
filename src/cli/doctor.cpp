// `miniray doctor` runs check() on nodes, and prints what would make a training run on them hang or fail.
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

CheckReport examine(const Options& options, const CommandContext& context) {
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
  cluster.program = ServerProgram::python(context.python);
  cluster.attendant = context.attendant;
  cluster.worker.on_interrupt = context.on_interrupt;
  CheckOptions what;
  what.ports = options.ports;
  what.language_probe = "miniray.doctor.describe_python";
  return check(nodes, cluster, what);
}

}  // namespace

void add_doctor(CLI::App& app, const CommandContext& context, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("doctor", "Find what would make a training run hang or fail, on this machine or on several");
  command->footer(
      "It checks every pair of nodes, ports, names, versions, clocks, GPUs, shared memory and limits.\n"
      "Each finding names its node, its cause and a cure.\n"
      "Exit codes: 0: no problem (there may be warnings), 1: a problem, or the check itself failed,\n"
      "2: the arguments are wrong, 130: Ctrl-C.");
  auto options = std::make_shared<Options>();
  command->add_option("nodes", options->nodes, "The hosts, as you name them to ssh (default: this machine)");
  command
      ->add_option("--port", options->ports,
                   "A port that must be free on all nodes, and reachable from all others; may be repeated")
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--workers", options->num_workers, "The number of workers on each node")->capture_default_str();
  command->add_option("--gpus-per-worker", options->gpus_per_worker,
                      "Check that each node has enough GPUs for its workers");
  command->add_option("--base-port", options->base_port,
                      "The port on which the nodes' servers will listen; 0: any free port");
  command->add_option("--python", options->python_bin, "The Python interpreter on the nodes, which must have MiniRay");
  command->add_option("--ssh-key", options->ssh_key, "The file of a private key for ssh");
  command->add_flag("--json", options->json, "Print one JSON object, for programs");
  command->callback([options, context, &exit_code] {
    const CheckReport report = examine(*options, context);
    std::printf("%s", options->json ? (write_json(report.value()) + "\n").c_str() : report.text().c_str());
    std::fflush(stdout);
    exit_code = report.healthy() ? 0 : 1;
  });
}

}  // namespace miniray::cli
