// All-reduce on GPUs without torch. Workers exchange an ncclUniqueId through MiniRay messages, and then use NCCL.
//
//   nccl_allreduce [workers on each node] [MiB] [node1 node2 ...]
//
// Each worker has a GPU of its own. A node is a host name that ssh knows; without nodes, the program uses this machine.
// Nodes need the NVIDIA driver, and NCCL and the CUDA runtime where the linker finds them; MiniRay copies this program.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <miniray/miniray.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int rounds = 20;

void require(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}
void require(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result));
}

// 1. Work function: one rank
void all_reduce_worker(miniray::Handle& handle) {
  const miniray::NCCLConfig config = miniray::nccl_config(handle.recv());
  handle.send({{"status", "ready"}});

  // Rank 0 makes the id, and the coordinator sends it to all ranks.
  ncclUniqueId id{};
  if (config.rank == 0) {
    require(ncclGetUniqueId(&id), "make an id");
    handle.send({{"id", miniray::Bytes{std::string(id.internal, sizeof(id.internal))}}});
  }
  const miniray::Value order = handle.recv();
  std::memcpy(id.internal, order["id"].bytes().data(), sizeof(id.internal));

  require(cudaSetDevice(0), "choose the GPU");  // the worker sees only its own GPU
  ncclComm_t group = nullptr;
  require(ncclCommInitRank(&group, config.world_size, id, config.rank), "join the group");
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream), "make a stream");
  const auto count = static_cast<std::size_t>(order["mib"].integer()) * 1024 * 1024 / sizeof(float);
  std::vector<float> host(count, static_cast<float>(config.rank + 1));
  float* values = nullptr;
  float* sums = nullptr;
  require(cudaMalloc(&values, count * sizeof(float)), "get GPU memory");
  require(cudaMalloc(&sums, count * sizeof(float)), "get GPU memory");
  require(cudaMemcpy(values, host.data(), count * sizeof(float), cudaMemcpyHostToDevice), "copy to the GPU");

  const auto reduce = [&] {
    require(ncclAllReduce(values, sums, count, ncclFloat, ncclSum, group, stream), "all-reduce");
  };
  reduce();
  require(cudaStreamSynchronize(stream), "wait");
  const auto begun = std::chrono::steady_clock::now();
  for (int round = 0; round < rounds; ++round) reduce();
  require(cudaStreamSynchronize(stream), "wait");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;

  require(cudaMemcpy(host.data(), sums, count * sizeof(float), cudaMemcpyDeviceToHost), "copy from the GPU");
  bool right = true;
  const auto expected = static_cast<float>(config.world_size * (config.world_size + 1) / 2);
  for (const float sum : host) right = right && sum == expected;
  handle.send({{"right", right}, {"milliseconds", took.count() * 1000 / rounds}});
  cudaFree(values);
  cudaFree(sums);
  cudaStreamDestroy(stream);
  ncclCommDestroy(group);
}

}  // namespace

int main(int argc, char** argv) {
  miniray::init(argc, argv, {{"all_reduce", all_reduce_worker}});
  const int workers = argc > 1 ? std::atoi(argv[1]) : 1;
  const int mib = argc > 2 ? std::atoi(argv[2]) : 256;
  std::vector<miniray::NodeConfig> nodes;
  for (int i = 3; i < argc; ++i) nodes.push_back({.host = argv[i]});
  if (nodes.empty()) nodes.push_back({.host = "localhost"});
  for (miniray::NodeConfig& node : nodes) {
    node.num_workers = workers;
    node.gpus_per_worker = 1;
    node.base_port = 0;
  }

  try {
    // 2. Launch the cluster, and send each worker its rank
    miniray::Cluster cluster(nodes);
    miniray::TrainingGroup group(cluster, cluster.start("all_reduce"));

    // 3. Receive the id from rank 0, and send it to all ranks
    const miniray::Value made = group.workers()[0]->recv();
    group.broadcast({{"id", made["id"]}, {"mib", mib}});

    // 4. Collect results
    const std::vector<miniray::Value> results = group.gather();
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (!results[rank]["right"].boolean()) throw std::runtime_error("rank " + std::to_string(rank) + " is wrong");
      std::printf("rank %zu of %zu: all-reduce of %d MiB in %.3f ms\n", rank, results.size(), mib,
                  results[rank]["milliseconds"].real());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
