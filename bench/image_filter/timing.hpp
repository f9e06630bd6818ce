// What the programs of this comparison have in common: each filters the same image, prints the median seconds of five
// runs, and checks the result.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "../../examples/image_filter.hpp"

namespace image_filter {

inline constexpr int runs = 5;

/// The first run warms up and is not measured.
template <class Run>
void print_seconds(Run run) {
  run();
  std::array<double, runs> seconds{};
  for (double& each : seconds) {
    const auto start = std::chrono::steady_clock::now();
    run();
    each = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("%.6f\n", seconds[runs / 2]);
}

inline void check(const Image& image, const std::vector<float>& result) {
  std::vector<float> alone(image.pixels.size());
  filter_rows(image.pixels, image.width, 0, image.height, alone);
  if (result == alone) return;
  std::fprintf(stderr, "a pixel is wrong\n");
  std::exit(EXIT_FAILURE);
}

}  // namespace image_filter
