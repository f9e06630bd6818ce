// Times the C++ API and its yardsticks. `core_bench ROW COUNT` prints nanoseconds per operation; bench/run.py
// interleaves the two sides and takes medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <miniray/miniray.hpp>
#include <string>
#include <vector>

#include "bench/yardsticks.hpp"
#include "tests/tcp_ends.hpp"

namespace {

using miniray::Array;
using miniray::Handle;
using miniray::Value;
using miniray::Worker;

constexpr std::size_t large_bytes = 8 << 20;
constexpr std::size_t small_bytes = 64;
constexpr std::size_t in_place_bytes = 128'000'000;

double ns_per_operation(std::size_t count, const std::function<void()>& operation) {
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) operation();
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(count);
}

double warm(std::size_t count, const std::function<void()>& operation) {
  ns_per_operation(std::max<std::size_t>(count / 10, 3), operation);
  return ns_per_operation(count, operation);
}

void echo(Handle& handle) {
  for (;;) handle.send(handle.recv());
}

const Value& small_message() {
  static const Value message{{"cmd", "echo"}, {"payload", std::string(32, 'x')}};
  return message;
}

double worker_round_trip(std::size_t count, std::optional<int> spin_us) {
  Worker worker(echo, {.spin_us = spin_us});
  return warm(count, [&] {
    worker.send(small_message());
    (void)worker.recv();
  });
}

// Runs a worker server, as it would run on another machine. Then the connection would be sealed.
enum class Wire { plain, sealed };

Worker serve_remotely() {
  return Worker([](Handle& handle) {
    miniray::WorkerServer serving("127.0.0.1", 0, echo);
    handle.send(serving.port());
    serving.serve_forever();
  });
}

double remote_round_trip(std::size_t count, const Value& message, std::optional<int> spin_us, Wire wire = Wire::plain) {
  Worker server = serve_remotely();
  miniray::RemoteOptions options;
  options.worker.spin_us = spin_us;
  options.encrypt = wire == Wire::sealed ? std::optional(true) : std::nullopt;
  const auto port = static_cast<int>(server.recv().integer());
  miniray::RemoteWorker worker("127.0.0.1", port, options);
  const double took = warm(count, [&] {
    worker.send(message);
    (void)worker.recv();
  });
  worker.close();
  server.kill();
  return took;
}

// The time until a worker's first answer.
double connect(std::size_t count, Wire wire) {
  Worker server = serve_remotely();
  miniray::RemoteOptions options;
  options.encrypt = wire == Wire::sealed ? std::optional(true) : std::nullopt;
  const auto port = static_cast<int>(server.recv().integer());
  const double took = warm(count, [&] {
    miniray::RemoteWorker worker("127.0.0.1", port, options);
    worker.send(1);
    (void)worker.recv();
    worker.kill();
  });
  server.kill();
  return took;
}

double one_way(std::size_t count) {
  Worker worker([count](Handle& handle) {
    for (;;) {
      for (std::size_t i = 0; i < count; ++i) (void)handle.recv();
      handle.send("done");
    }
  });
  const auto run = [&] {
    for (std::size_t i = 0; i < count; ++i) worker.send(small_message());
    (void)worker.recv();
  };
  run();
  return ns_per_operation(1, run) / static_cast<double>(count);
}

double raw_one_way(std::size_t count) {
  bench::RawSink sink(count, small_bytes);
  const auto run = [&] {
    for (std::size_t i = 0; i < count; ++i) sink.send();
    sink.wait();
  };
  run();
  return ns_per_operation(1, run) / static_cast<double>(count);
}

double raw_echo(std::size_t count, bench::Ends ends, std::size_t bytes) {
  bench::RawEcho echo_process(ends, bytes);
  return warm(count, [&] { echo_process.round_trip(); });
}

Value large_message() { return Value(Array::of(std::vector<double>(large_bytes / sizeof(double), 0.5))); }

double worker_start(std::size_t count) {
  return warm(count, [] {
    Worker worker([](Handle& handle) { handle.send(handle.recv()); });
    worker.send(1);
    (void)worker.recv();
    worker.wait();
  });
}

// 128 MB that are in memory which is passed on, and a small answer. Filling the array is not part of it. It takes so
// much longer than the rest that a mean would mostly tell how often another process had the core when the answer came.
double in_place(std::size_t count) {
  Worker worker([](Handle& handle) {
    for (;;) {
      const Value array = handle.recv();
      handle.send(array.array<const float>()[0]);
    }
  });
  std::vector<double> times;
  for (std::size_t i = 0; i < count + 2; ++i) {
    Array array = worker.make_array<float>({in_place_bytes / sizeof(float)});
    std::ranges::fill(array.mutable_elements<float>(), static_cast<float>(i));
    const double took = ns_per_operation(1, [&] {
      worker.send(array);
      (void)worker.recv();
    });
    if (i >= 2) times.push_back(took);
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

double copied_once(std::size_t count) {
  const std::vector<std::uint8_t> from(in_place_bytes, 1);
  std::vector<std::uint8_t> to(in_place_bytes, 2);
  return warm(count, [&] { std::memcpy(to.data(), from.data(), to.size()); });
}

using Row = std::function<double(std::size_t)>;

const std::map<std::string, Row>& rows() {
  static const std::map<std::string, Row> all{
      {"socketpair/raw", [](std::size_t n) { return raw_echo(n, bench::unix_ends(), small_bytes); }},
      {"socketpair/sleeping", [](std::size_t n) { return worker_round_trip(n, 0); }},
      {"socketpair/spinning", [](std::size_t n) { return worker_round_trip(n, {}); }},
      {"tcp/raw", [](std::size_t n) { return raw_echo(n, miniray::tcp_ends(), small_bytes); }},
      {"tcp/sleeping", [](std::size_t n) { return remote_round_trip(n, small_message(), 0); }},
      {"large/raw", [](std::size_t n) { return raw_echo(n, bench::unix_ends(), large_bytes); }},
      {"large_tcp/raw", [](std::size_t n) { return raw_echo(n, miniray::tcp_ends(), large_bytes); }},
      {"large_tcp/ours", [](std::size_t n) { return remote_round_trip(n, large_message(), {}); }},
      {"large_tcp/sleeping", [](std::size_t n) { return remote_round_trip(n, large_message(), 0); }},
      {"sealed/sleeping", [](std::size_t n) { return remote_round_trip(n, small_message(), 0, Wire::sealed); }},
      {"sealed/large_sleeping", [](std::size_t n) { return remote_round_trip(n, large_message(), 0, Wire::sealed); }},
      {"sealed/connect", [](std::size_t n) { return connect(n, Wire::sealed); }},
      {"tcp/connect", [](std::size_t n) { return connect(n, Wire::plain); }},
      {"in_place/raw", copied_once},
      {"in_place/ours", in_place},
      {"one_way/raw", raw_one_way},
      {"one_way/ours", one_way},
      {"start/raw", [](std::size_t n) { return warm(n, bench::bare_start); }},
      {"start/ours", worker_start},
  };
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const auto row = argc == 3 ? rows().find(argv[1]) : rows().end();
  if (row == rows().end()) {
    std::fprintf(stderr, "usage: core_bench ROW COUNT, where ROW is one of:\n");
    for (const auto& [name, run] : rows()) std::fprintf(stderr, "  %s\n", name.c_str());
    return EXIT_FAILURE;
  }
  std::printf("%.1f\n", row->second(static_cast<std::size_t>(std::atoi(argv[2]))));
}
