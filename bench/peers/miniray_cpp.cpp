// MiniRay's C++ API, for bench-peers: `peer_miniray_cpp calls|tasks|all_reduce_RANKS QUICK`.
#include <miniray/miniray.hpp>

#include "bench/peers/cpp_bench.hpp"

namespace {

using bench::Arguments;
using miniray::Array;
using miniray::Handle;
using miniray::Value;
using miniray::Worker;

void echo(Handle& handle) {
  for (;;) handle.send(handle.recv());
}

double seconds_of_echo(Worker& worker, std::size_t bytes, const Arguments& arguments) {
  Array array = worker.make_array<std::uint8_t>({bytes});  // in place: it is passed on without a copy
  std::ranges::fill(array.mutable_elements<std::uint8_t>(), 1);
  return bench::seconds_each(arguments.enough_s(), 1, [&] {
    worker.send(array);
    const Value back = worker.recv();
    if (back.array().size() != bytes || !bench::is_right(back.array<const std::uint8_t>().data(), bytes))
      bench::fail("a wrong echo");
  });
}

void calls(const Arguments& arguments) {
  Worker worker(echo);
  bench::tell("cpp_call", bench::seconds_each(arguments.enough_s(), arguments.batch(), [&] {
                worker.send(7);
                if (worker.recv() != Value(7)) bench::fail("a wrong answer");
              }));
  const std::size_t many = arguments.batch();
  bench::tell("cpp_in_flight", bench::seconds_each(arguments.enough_s(), 1, [&] {
                                 for (std::size_t i = 0; i < many; ++i) worker.send(i);
                                 for (std::size_t i = 0; i < many; ++i)
                                   if (worker.recv() != Value(i)) bench::fail("a wrong answer");
                               }) / static_cast<double>(many));
  bench::tell("cpp_8_mib", seconds_of_echo(worker, bench::echo_bytes, arguments));
  bench::tell("cpp_1_gb", seconds_of_echo(worker, arguments.quick ? 1'000'000 : bench::large_bytes, arguments));
}

void tasks(const Arguments& arguments, int workers) {
  miniray::registry().add("spin", [](double us) {
    bench::spin_us(us);
    return 1;
  });
  miniray::Pool pool(workers);
  for (const int us : {1, 10, 100, 1000}) {
    const std::size_t count =
        arguments.quick ? 20 : std::max<std::size_t>(1000, 200'000 / static_cast<std::size_t>(us));
    const std::vector<double> items(count, us);
    bench::tell("cpp_map_" + std::to_string(us), bench::seconds_each(arguments.enough_s(), 1, [&] {
                                                   if (pool.map<int>("spin", items).size() != count)
                                                     bench::fail("too few");
                                                 }) / static_cast<double>(count));
  }
}

void all_reduce(const Arguments& arguments, int ranks) {
  std::vector<Worker> workers;
  for (int rank = 0; rank < ranks; ++rank)
    workers.emplace_back([&arguments](Handle& handle) {
      miniray::Group group = miniray::Group::join(handle);
      for (const std::size_t bytes : bench::all_reduce_sizes(arguments.quick)) {
        std::vector<float> numbers(bytes / sizeof(float), 1.0F);
        std::vector<double> times;
        const int rounds = bench::all_reduce_rounds(bytes, arguments.quick);
        for (int round = -2; round < rounds; ++round) {
          const double begin = bench::now_s();
          group.all_reduce(std::span(numbers), miniray::ReduceOp::max);
          if (round >= 0) times.push_back(bench::now_s() - begin);
        }
        if (numbers.back() != 1.0F) bench::fail("a wrong maximum");
        if (group.rank() == 0)
          bench::tell("cpp_all_reduce_" + std::to_string(group.size()) + "_" + std::to_string(bytes),
                      bench::median(times));
      }
      handle.send("done");
    });
  miniray::create_group(workers);
  for (Worker& worker : workers) (void)worker.recv();
}

}  // namespace

int main(int argc, char** argv) {
  miniray::init(argc, argv);
  const Arguments arguments(argc, argv);
  if (arguments.work == "calls") {
    calls(arguments);
  } else if (arguments.work.starts_with("tasks_")) {
    tasks(arguments, std::stoi(arguments.work.substr(6)));
  } else if (arguments.work.starts_with("all_reduce_")) {
    all_reduce(arguments, std::stoi(arguments.work.substr(11)));
  } else {
    bench::fail("usage: peer_miniray_cpp calls|tasks_WORKERS|all_reduce_RANKS QUICK");
  }
}
