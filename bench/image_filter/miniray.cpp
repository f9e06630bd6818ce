// The filter with a MiniRay pool, as in examples/image_filter.cpp.
//   image_filter_miniray WIDTH HEIGHT WORKERS
#include <miniray/miniray.hpp>

#include "timing.hpp"

namespace {

miniray::Array filter_band(const miniray::Array& rows, std::size_t skip, std::size_t count) {
  const std::size_t width = rows.shape().at(1);
  std::vector<float> result(width * count);
  image_filter::filter_rows(rows.elements<const float>(), width, skip, count, result);
  return miniray::Array::of(std::move(result));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace image_filter;
  if (argc != 4) return EXIT_FAILURE;
  constexpr std::size_t band_rows = 64;
  miniray::Pool pool(std::stoi(argv[3]));
  const Image image = noisy_image(std::stoull(argv[1]), std::stoull(argv[2]));
  std::vector<float> result;
  print_seconds([&] {
    std::vector<miniray::TaskFuture<miniray::Array>> bands;
    for (std::size_t first = 0; first < image.height; first += band_rows) {
      const std::size_t count = std::min(band_rows, image.height - first);
      const auto [from, to] = band_of(first, count, image.height);
      const auto rows = std::span(image.pixels).subspan(from * image.width, (to - from) * image.width);
      bands.push_back(pool.submit(miniray::fn<filter_band>, miniray::Array::view(rows, {to - from, image.width}),
                                  first - from, count));
    }
    result.clear();
    for (const auto& band : bands) {
      const miniray::Array rows = band.get();
      const auto pixels = rows.elements<const float>();
      result.insert(result.end(), pixels.begin(), pixels.end());
    }
  });
  check(image, result);
}
