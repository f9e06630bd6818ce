// Filters an image on all cores: each task gets a band of its rows, and returns the filtered band.
//   image_filter [width] [height] [workers] [picture.pgm]
#include "image_filter.hpp"

#include <chrono>
#include <cstdlib>
#include <miniray/miniray.hpp>
#include <thread>

namespace {

using image_filter::Image;

constexpr std::size_t band_rows = 64;

// The task. It runs in a worker.
miniray::Array filter_band(const miniray::Array& rows, std::size_t skip, std::size_t count) {
  const std::size_t width = rows.shape().at(1);
  std::vector<float> result(width * count);
  image_filter::filter_rows(rows.elements<const float>(), width, skip, count, result);
  return miniray::Array::of(std::move(result), {count, width});
}

Image filtered(const Image& image, miniray::Pool& pool) {
  std::vector<miniray::TaskFuture<miniray::Array>> bands;
  for (std::size_t first = 0; first < image.height; first += band_rows) {
    const std::size_t count = std::min(band_rows, image.height - first);
    const auto [from, to] = image_filter::band_of(first, count, image.height);
    // The view refers to the image's memory. The task is sent from there; nothing is copied before.
    const auto rows = std::span(image.pixels).subspan(from * image.width, (to - from) * image.width);
    bands.push_back(pool.submit(miniray::fn<filter_band>, miniray::Array::view(rows, {to - from, image.width}),
                                first - from, count));
  }
  Image result{image.width, image.height, {}};
  result.pixels.reserve(image.pixels.size());
  for (const auto& band : bands) {
    const miniray::Array rows = band.get();
    const auto pixels = rows.elements<const float>();
    result.pixels.insert(result.pixels.end(), pixels.begin(), pixels.end());
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t width = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1920;
  const std::size_t height = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1080;
  const int workers = argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  if (width < 1 || height < 1 || workers < 1) {
    std::fprintf(stderr, "usage: image_filter [width] [height] [workers] [picture.pgm]\n");
    return EXIT_FAILURE;
  }
  miniray::Pool pool(workers);
  const Image image = image_filter::noisy_image(width, height);

  const auto start = std::chrono::steady_clock::now();
  const Image result = filtered(image, pool);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  std::vector<float> alone(image.pixels.size());
  const auto alone_start = std::chrono::steady_clock::now();
  image_filter::filter_rows(image.pixels, width, 0, height, alone);
  const double alone_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - alone_start).count();

  std::printf("%zu x %zu pixels: %.3f s on %d workers, %.3f s in this process alone.\n", width, height, seconds,
              workers, alone_seconds);
  if (argc > 4) image_filter::write_picture(argv[4], result);
  if (result.pixels == alone) return EXIT_SUCCESS;
  std::fprintf(stderr, "the two results differ\n");
  return EXIT_FAILURE;
}
