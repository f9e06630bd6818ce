// Runs tasks on a pool of workers: many small tasks, one that needs all CPUs, and one that fails.
//   pool [tasks] [workers]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <miniray/miniray.hpp>
#include <numeric>
#include <random>
#include <ranges>
#include <vector>

namespace {

// Draws random points in a square, and counts those in its circle.
int count_hits(int seed) {
  constexpr int points = 20'000;
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_real_distribution<double> coordinate(-1, 1);
  int hits = 0;
  for (int i = 0; i < points; ++i) hits += std::hypot(coordinate(random), coordinate(random)) < 1 ? 1 : 0;
  return hits;
}

double mean(const std::vector<int>& numbers) {
  if (numbers.empty()) throw std::invalid_argument("the mean of nothing");
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

}  // namespace

int main(int argc, char** argv) {
  const int tasks = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int workers = argc > 2 ? std::atoi(argv[2]) : 4;
  if (tasks < 1 || workers < 1) {
    std::fprintf(stderr, "usage: pool [tasks] [workers]\n");
    return EXIT_FAILURE;
  }

  // Register before the workers start: they have what this program has at that time.
  miniray::registry().add("count_hits", count_hits).add("mean", mean);
  miniray::Pool pool(workers);
  const std::vector<int> hits = pool.map(count_hits, std::views::iota(1, tasks + 1));

  // This task gets all CPUs, and is tried again if its worker dies.
  const miniray::PoolView wide = pool.with({.num_cpus = static_cast<double>(workers), .retries = 2});
  const auto average = wide.submit(mean, hits).then([](double hit) { return 4 * hit / 20'000; });
  const auto failing = pool.submit<double>("mean", std::vector<int>());  // by its name
  const double pi = average.get();
  try {
    (void)failing.get();
  } catch (const miniray::CallError& error) {
    std::printf("%s\n", error.message().c_str());  // the mean of nothing
  }
  std::printf("Pi is about %.3f, by %d tasks on %d workers.\n", pi, tasks, workers);
  return std::abs(pi - 3.14159) < 0.05 ? EXIT_SUCCESS : EXIT_FAILURE;
}
