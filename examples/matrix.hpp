// Square matrices, as matmul.cpp and cluster_matmul.cpp multiply them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

using Matrix = std::vector<double>;

inline Matrix multiply(std::span<const double> a, std::span<const double> b, std::size_t size) {
  Matrix product(size * size);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t k = 0; k < size; ++k) {
      const double factor = a[i * size + k];
      for (std::size_t j = 0; j < size; ++j) product[i * size + j] += factor * b[k * size + j];
    }
  }
  return product;
}
