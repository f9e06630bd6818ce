// Multiplies pairs of matrices on all cores, like matmul.py: eight workers, plain messages, round robin.
//   matmul [pairs] [size] [workers]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <miniray/miniray.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "matrix.hpp"

namespace {

// Runs in each worker.
void matrix_worker(miniray::Handle& handle) {
  for (;;) {
    const miniray::Value msg = handle.recv();
    if (msg["cmd"] == "multiply") {
      const std::size_t size = msg["A"].array().shape()[0];
      Matrix product = multiply(msg["A"].array<const double>(), msg["B"].array<const double>(), size);
      handle.send({{"result", miniray::Array::of(std::move(product), {size, size})}});
    } else if (msg["cmd"] == "shutdown") {
      break;
    }
  }
}

// Shows one line that is rewritten on a terminal, and a few lines elsewhere.
void show_progress(std::size_t done, std::size_t total) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (!terminal && done != total && done % std::max<std::size_t>(total / 4, 1) != 0) return;
  std::printf(terminal && done < total ? "C++          %zu/%zu\r" : "C++          %zu/%zu\n", done, total);
  std::fflush(stdout);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int position, int otherwise) {
    return static_cast<std::size_t>(argc > position ? std::atoi(argv[position]) : otherwise);
  };
  const std::size_t pairs = argument(1, 32), size = argument(2, 512), count = argument(3, 8);
  if (pairs == 0 || size == 0 || count == 0) {
    std::fprintf(stderr, "usage: matmul [pairs] [size] [workers]\n");
    return EXIT_FAILURE;
  }

  std::vector<miniray::Worker> workers;
  workers.reserve(count);
  for (std::size_t i = 0; i < count; ++i) workers.emplace_back(matrix_worker);

  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform;
  std::vector<std::pair<Matrix, Matrix>> matrices(pairs);
  for (auto& [a, b] : matrices) {
    for (Matrix* matrix : {&a, &b}) {
      matrix->resize(size * size);
      for (double& element : *matrix) element = uniform(random);
    }
  }

  const auto start = std::chrono::steady_clock::now();
  const miniray::Shape shape{size, size};
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto& [a, b] = matrices[i];
    workers[i % count].send({{"cmd", "multiply"},
                             {"A", miniray::Array::view<double>(a, shape)},
                             {"B", miniray::Array::view<double>(b, shape)}});
  }
  double checksum = 0;
  for (std::size_t i = 0; i < pairs; ++i) {
    checksum += workers[i % count].recv()["result"].array<double>()[0];
    show_progress(i + 1, pairs);
  }
  const double together = seconds_since(start);
  for (miniray::Worker& worker : workers) {
    worker.send({{"cmd", "shutdown"}});
    worker.wait();
  }

  const auto start_alone = std::chrono::steady_clock::now();
  double checksum_alone = 0;
  for (const auto& [a, b] : matrices) checksum_alone += multiply(a, b, size)[0];
  const double alone = seconds_since(start_alone);
  if (checksum != checksum_alone) {
    std::printf("the products differ: %g and %g\n", checksum, checksum_alone);
    return EXIT_FAILURE;
  }
  std::printf(
      "Computed %zu matrix products of %zux%zu with %zu workers on %u cores:\n"
      "  workers          %6.2f s\n  one process      %6.2f s\n",
      pairs, size, size, count, std::thread::hardware_concurrency(), together, alone);
}
