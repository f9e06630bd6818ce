// Multiplies pairs of matrices on several machines, like cluster_matmul.py. MiniRay copies this program to the nodes,
// so nothing has to be installed there.
//   cluster_matmul [pairs] [size] [workers on each node] [node ...]
// Without nodes, it starts two servers on this machine.
#include <cstdio>
#include <cstdlib>
#include <miniray/miniray.hpp>
#include <random>
#include <string>
#include <vector>

#include "matrix.hpp"

namespace {

// Runs in each worker.
void matrix_worker(miniray::Handle& handle) {
  for (;;) {
    const miniray::Value msg = handle.recv();
    if (msg["cmd"] == "shutdown") return;
    const std::size_t size = msg["A"].array().shape()[0];
    Matrix product = multiply(msg["A"].array<const double>(), msg["B"].array<const double>(), size);
    handle.send({{"result", miniray::Array::of(std::move(product), {size, size})}});
  }
}

int run(std::size_t pairs, std::size_t size, std::vector<miniray::NodeConfig> nodes) {
  const std::size_t node_count = nodes.size();
  miniray::Cluster cluster(std::move(nodes));
  const std::span<miniray::Worker> workers = cluster.start("matrix_worker");

  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform;
  std::vector<std::pair<Matrix, Matrix>> matrices(pairs);
  for (auto& [a, b] : matrices) {
    for (Matrix* matrix : {&a, &b}) {
      matrix->resize(size * size);
      for (double& element : *matrix) element = uniform(random);
    }
  }

  const miniray::Shape shape{size, size};
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto& [a, b] = matrices[i];
    workers[i % workers.size()].send({{"cmd", "multiply"},
                                      {"A", miniray::Array::view<double>(a, shape)},
                                      {"B", miniray::Array::view<double>(b, shape)}});
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    const miniray::Value answer = workers[i % workers.size()].recv();
    if (answer["result"].array<double>()[0] != multiply(matrices[i].first, matrices[i].second, size)[0]) {
      std::printf("product %zu is wrong\n", i);
      return EXIT_FAILURE;
    }
  }
  std::printf("Computed %zu matrix products with %zu workers on %zu nodes\n", pairs, workers.size(), node_count);
  cluster.broadcast({{"cmd", "shutdown"}});
  cluster.stop();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  miniray::init(argc, argv, {{"matrix_worker", matrix_worker}});
  const auto argument = [&](int position, int otherwise) {
    return argc > position ? std::atoi(argv[position]) : otherwise;
  };
  const int pairs = argument(1, 32), size = argument(2, 256), workers = argument(3, 4);
  if (pairs <= 0 || size <= 0 || workers <= 0) {
    std::fprintf(stderr, "usage: cluster_matmul [pairs] [size] [workers on each node] [node ...]\n");
    return EXIT_FAILURE;
  }
  std::vector<std::string> hosts(argv + std::min(argc, 4), argv + argc);
  if (hosts.empty()) hosts = {"localhost", "localhost"};
  std::vector<miniray::NodeConfig> nodes;
  for (const std::string& host : hosts)
    nodes.push_back({.host = host, .num_workers = workers, .base_port = 0});  // 0: any free port
  try {
    return run(static_cast<std::size_t>(pairs), static_cast<std::size_t>(size), std::move(nodes));
  } catch (const miniray::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
