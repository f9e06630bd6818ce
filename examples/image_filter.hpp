// A bilateral filter: it smooths an image and keeps its edges. Each pixel becomes a mean of its neighbours, in which
// those that are near and of a similar brightness weigh more.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace image_filter {

inline constexpr std::size_t radius = 4;  // how many rows above and below a row its pixels depend on

struct Image {
  std::size_t width = 0, height = 0;
  std::vector<float> pixels;  // row by row, from 0 (black) to 1 (white)
};

/// Rings and a checkerboard, with noise for the filter to remove. It is the same for the same size.
inline Image noisy_image(std::size_t width, std::size_t height) {
  Image image{width, height, std::vector<float>(width * height)};
  unsigned state = 1;
  for (std::size_t y = 0; y < height; ++y)
    for (std::size_t x = 0; x < width; ++x) {
      const double from_centre = std::hypot(static_cast<double>(x) - static_cast<double>(width) / 2,
                                            static_cast<double>(y) - static_cast<double>(height) / 2);
      const double rings = std::sin(from_centre / 20) > 0 ? 0.7 : 0.3;
      const double squares = (x / 64 + y / 64) % 2 == 0 ? 0.1 : -0.1;
      state = state * 1664525U + 1013904223U;
      const double noise = (static_cast<double>(state >> 8U) / (1U << 24U) - 0.5) * 0.2;
      image.pixels[y * width + x] = static_cast<float>(std::clamp(rings + squares + noise, 0.0, 1.0));
    }
  return image;
}

/// The rows of an image that the result's rows [first, first + count) depend on.
struct Band {
  std::size_t from, to;  // rows of the image, without the last
};
inline Band band_of(std::size_t first, std::size_t count, std::size_t height) {
  return {first < radius ? 0 : first - radius, std::min(height, first + count + radius)};
}

/// Filters `count` rows. `rows` is a part of an image, and the first row of the result is number `skip` in it. At the
/// edges of `rows`, the nearest row stands for those that are missing.
inline void filter_rows(std::span<const float> rows, std::size_t width, std::size_t skip, std::size_t count,
                        std::span<float> result) {
  constexpr std::size_t steps = 256;
  std::array<float, steps> similar{};  // the weight of a difference in brightness
  for (std::size_t i = 0; i < steps; ++i) {
    const float difference = static_cast<float>(i) / steps;
    similar[i] = std::exp(-difference * difference / (2 * 0.15F * 0.15F));
  }
  constexpr int reach = static_cast<int>(radius);
  std::array<float, (2 * radius + 1) * (2 * radius + 1)> near{};  // the weight of a distance
  for (int dy = -reach; dy <= reach; ++dy)
    for (int dx = -reach; dx <= reach; ++dx)
      near[static_cast<std::size_t>((dy + reach) * (2 * reach + 1) + dx + reach)] =
          std::exp(-static_cast<float>(dx * dx + dy * dy) / (2.0F * reach));
  const int height = static_cast<int>(rows.size() / width), last_column = static_cast<int>(width) - 1;
  for (std::size_t line = 0; line < count; ++line) {
    const int y = static_cast<int>(skip + line);
    for (int x = 0; x <= last_column; ++x) {
      const float centre = rows[static_cast<std::size_t>(y) * width + static_cast<std::size_t>(x)];
      float sum = 0, weights = 0;
      std::size_t at = 0;
      for (int dy = -reach; dy <= reach; ++dy) {
        const float* row = rows.data() + static_cast<std::size_t>(std::clamp(y + dy, 0, height - 1)) * width;
        for (int dx = -reach; dx <= reach; ++dx, ++at) {
          const float other = row[std::clamp(x + dx, 0, last_column)];
          const auto step = static_cast<std::size_t>(std::abs(other - centre) * (steps - 1));
          const float weight = near[at] * similar[step];
          sum += weight * other;
          weights += weight;
        }
      }
      result[line * width + static_cast<std::size_t>(x)] = sum / weights;
    }
  }
}

/// Writes a picture that image viewers can show (PGM).
inline void write_picture(const std::string& path, const Image& image) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  std::fprintf(file, "P5\n%zu %zu\n255\n", image.width, image.height);
  for (const float pixel : image.pixels) std::fputc(static_cast<int>(std::lround(pixel * 255)), file);
  std::fclose(file);
}

}  // namespace image_filter
