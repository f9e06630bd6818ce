// Open MPI's C API, for bench-peers: `mpirun -n RANKS peer_mpi_cpp calls|tasks_RANKS|all_reduce_RANKS QUICK`.
#include <mpi.h>

#include "bench/peers/cpp_bench.hpp"

namespace {

using bench::Arguments;

constexpr int tag_small = 1, tag_large = 2, tag_end = 3;

// Rank 1 sends back what it gets.
void serve() {
  std::vector<std::uint8_t> room;
  for (;;) {
    MPI_Status status;
    int bytes = 0;
    MPI_Probe(0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (room.size() < static_cast<std::size_t>(bytes)) room.resize(static_cast<std::size_t>(bytes));
    MPI_Recv(room.data(), bytes, MPI_BYTE, 0, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (status.MPI_TAG == tag_end) return;
    MPI_Send(room.data(), bytes, MPI_BYTE, 0, status.MPI_TAG, MPI_COMM_WORLD);
  }
}

double seconds_of_echo(std::size_t bytes, const Arguments& arguments) {
  const std::vector<std::uint8_t> array(bytes, 1);
  std::vector<std::uint8_t> back(bytes);
  const int count = static_cast<int>(bytes);
  return bench::seconds_each(arguments.enough_s(), 1, [&] {
    MPI_Send(array.data(), count, MPI_BYTE, 1, tag_large, MPI_COMM_WORLD);
    MPI_Recv(back.data(), count, MPI_BYTE, 1, tag_large, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!bench::is_right(back.data(), bytes)) bench::fail("a wrong echo");
  });
}

void calls(const Arguments& arguments) {
  std::uint64_t answer = 0;
  bench::tell("cpp_call", bench::seconds_each(arguments.enough_s(), arguments.batch(), [&] {
                const std::uint64_t question = 7;
                MPI_Send(&question, sizeof(question), MPI_BYTE, 1, tag_small, MPI_COMM_WORLD);
                MPI_Recv(&answer, sizeof(answer), MPI_BYTE, 1, tag_small, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                if (answer != question) bench::fail("a wrong answer");
              }));
  const std::size_t many = arguments.batch();
  std::vector<std::uint64_t> questions(many);
  std::vector<MPI_Request> requests(many);
  bench::tell("cpp_in_flight",
              bench::seconds_each(arguments.enough_s(), 1, [&] {
                for (std::size_t i = 0; i < many; ++i) {
                  questions[i] = i;
                  MPI_Isend(&questions[i], sizeof(std::uint64_t), MPI_BYTE, 1, tag_small, MPI_COMM_WORLD, &requests[i]);
                }
                for (std::size_t i = 0; i < many; ++i) {
                  MPI_Recv(&answer, sizeof(answer), MPI_BYTE, 1, tag_small, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                  if (answer != i) bench::fail("a wrong answer");
                }
                MPI_Waitall(static_cast<int>(many), requests.data(), MPI_STATUSES_IGNORE);
              }) / static_cast<double>(many));
  bench::tell("cpp_8_mib", seconds_of_echo(bench::echo_bytes, arguments));
  bench::tell("cpp_1_gb", seconds_of_echo(arguments.quick ? 1'000'000 : bench::large_bytes, arguments));
  MPI_Send(nullptr, 0, MPI_BYTE, 1, tag_end, MPI_COMM_WORLD);
}

// MPI has no pool: the items are scattered evenly, and the results gathered.
void tasks(const Arguments& arguments, int rank, int ranks) {
  for (const int us : {1, 10, 100, 1000}) {
    const int wanted = arguments.quick ? 20 : std::max(1000, 200'000 / us);
    const int each = (wanted + ranks - 1) / ranks;
    std::vector<double> items(rank == 0 ? static_cast<std::size_t>(each * ranks) : 0, us),
        mine(static_cast<std::size_t>(each));
    std::vector<int> done(static_cast<std::size_t>(each)), all(rank == 0 ? static_cast<std::size_t>(each * ranks) : 0);
    const int rounds = arguments.quick ? 1 : 4;
    std::vector<double> times;
    for (int round = -1; round < rounds; ++round) {
      const double begin = bench::now_s();
      MPI_Scatter(items.data(), each, MPI_DOUBLE, mine.data(), each, MPI_DOUBLE, 0, MPI_COMM_WORLD);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        bench::spin_us(mine[i]);
        done[i] = 1;
      }
      MPI_Gather(done.data(), each, MPI_INT, all.data(), each, MPI_INT, 0, MPI_COMM_WORLD);
      if (round >= 0) times.push_back(bench::now_s() - begin);
    }
    if (rank == 0) bench::tell("cpp_map_" + std::to_string(us), bench::median(times) / (each * ranks));
  }
}

void all_reduce(const Arguments& arguments, int rank, int ranks) {
  for (const std::size_t bytes : bench::all_reduce_sizes(arguments.quick)) {
    std::vector<float> numbers(bytes / sizeof(float), 1.0F);
    std::vector<double> times;
    const int rounds = bench::all_reduce_rounds(bytes, arguments.quick);
    for (int round = -2; round < rounds; ++round) {
      const double begin = bench::now_s();
      MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()), MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
      if (round >= 0) times.push_back(bench::now_s() - begin);
    }
    if (numbers.back() != 1.0F) bench::fail("a wrong maximum");
    if (rank == 0)
      bench::tell("cpp_all_reduce_" + std::to_string(ranks) + "_" + std::to_string(bytes), bench::median(times));
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const Arguments arguments(argc, argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (arguments.work == "calls")
    rank == 0 ? calls(arguments) : serve();
  else if (arguments.work.starts_with("tasks_"))
    tasks(arguments, rank, ranks);
  else
    all_reduce(arguments, rank, ranks);
  MPI_Finalize();
}
