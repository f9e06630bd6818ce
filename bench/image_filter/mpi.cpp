// The filter with MPI. Rank 0 has the image and gets the result; every rank filters an equal part of the rows.
//   mpirun -n RANKS mpi WIDTH HEIGHT RANKS
#include <mpi.h>

#include "timing.hpp"

int main(int argc, char** argv) {
  using namespace image_filter;
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::size_t width = std::stoull(argv[1]), height = std::stoull(argv[2]), ranks = std::stoull(argv[3]);
  const Image image = rank == 0 ? noisy_image(width, height) : Image{width, height, {}};
  std::vector<int> sizes, starts, result_sizes, result_starts;
  std::size_t skip = 0, count_here = 0;
  for (std::size_t i = 0; i < ranks; ++i) {
    const std::size_t first = height * i / ranks, count = height * (i + 1) / ranks - first;
    const auto [from, to] = band_of(first, count, height);
    sizes.push_back(static_cast<int>((to - from) * width));
    starts.push_back(static_cast<int>(from * width));
    result_sizes.push_back(static_cast<int>(count * width));
    result_starts.push_back(static_cast<int>(first * width));
    if (static_cast<int>(i) == rank) skip = first - from, count_here = count;
  }
  std::vector<float> rows(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
  std::vector<float> mine(count_here * width), result(image.pixels.size());
  const auto filter = [&] {
    MPI_Scatterv(image.pixels.data(), sizes.data(), starts.data(), MPI_FLOAT, rows.data(),
                 static_cast<int>(rows.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
    filter_rows(rows, width, skip, count_here, mine);
    MPI_Gatherv(mine.data(), static_cast<int>(mine.size()), MPI_FLOAT, result.data(), result_sizes.data(),
                result_starts.data(), MPI_FLOAT, 0, MPI_COMM_WORLD);
  };
  if (rank == 0) {
    print_seconds(filter);
    check(image, result);
  } else {
    for (int i = 0; i < runs + 1; ++i) filter();
  }
  MPI_Finalize();
}
