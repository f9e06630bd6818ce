// The filter with OpenMP: threads that share the memory of one process.
//   openmp WIDTH HEIGHT THREADS
#include "timing.hpp"

int main(int argc, char** argv) {
  using namespace image_filter;
  if (argc != 4) return EXIT_FAILURE;
  constexpr std::size_t band_rows = 64;
  const Image image = noisy_image(std::stoull(argv[1]), std::stoull(argv[2]));
  const int threads = std::stoi(argv[3]);
  std::vector<float> result(image.pixels.size());
  print_seconds([&] {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (std::size_t first = 0; first < image.height; first += band_rows) {
      const std::size_t count = std::min(band_rows, image.height - first);
      filter_rows(image.pixels, image.width, first, count,
                  std::span(result).subspan(first * image.width, count * image.width));
    }
  });
  check(image, result);
}
