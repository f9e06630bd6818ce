// What the C++ programs of bench-peers share: how time is taken, and how figures are told to bench/peers/cpp.py.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace bench {

constexpr std::size_t echo_bytes = 8 << 20;
constexpr std::size_t large_bytes = 1'000'000'000;

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A figure: a row's key and seconds for each operation.
inline void tell(const std::string& row, double seconds) {
  std::printf("%s %.9g\n", row.c_str(), seconds);
  std::fflush(stdout);
}

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

/// Repeats the operation for about `enough_s` after a warm-up, and returns the mean of its times.
template <class Operation>
double seconds_each(double enough_s, std::size_t batch, Operation operation) {
  for (std::size_t i = 0; i < std::max<std::size_t>(1, batch / 10); ++i) operation();
  double took = 0;
  std::size_t done = 0;
  do {
    const double begin = now_s();
    for (std::size_t i = 0; i < batch; ++i) operation();
    took += now_s() - begin;
    done += batch;
  } while (took < enough_s);
  return took / static_cast<double>(done);
}

/// Whether each page of an echo is what was sent. The reader of an array looks at it, wherever it lies.
inline bool is_right(const std::uint8_t* bytes, std::size_t size) {
  for (std::size_t at = 0; at < size; at += 4096)
    if (bytes[at] != 1) return false;
  return true;
}

/// A task: uses the processor for this long.
inline void spin_us(double us) {
  const double end = now_s() + us * 1e-6;
  while (now_s() < end) {
  }
}

/// How often an all_reduce of this size is repeated; the median is taken.
inline int all_reduce_rounds(std::size_t bytes, bool quick) {
  return quick ? 2 : bytes <= 100'000 ? 500 : bytes <= 10'000'000 ? 40 : 7;
}

inline double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

inline std::vector<std::size_t> all_reduce_sizes(bool quick) {
  if (quick) return {1024, 1 << 20};
  return {1024, 16 << 10, 256 << 10, 4 << 20, 64 << 20};
}

/// The arguments of each program: WORK QUICK.
struct Arguments {
  std::string work;
  bool quick = false;
  Arguments(int argc, char** argv) : work(argc > 1 ? argv[1] : ""), quick(argc > 2 && std::string(argv[2]) == "1") {}
  [[nodiscard]] double enough_s() const { return quick ? 0.0 : 0.4; }
  [[nodiscard]] std::size_t batch() const { return quick ? 20 : 1000; }
};

}  // namespace bench
