// Groups of ranks: results, and what the other ranks hear when one of them fails.
#include "miniray/group.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <complex>
#include <cstring>
#include <numeric>

#include "tests/wait_until.hpp"

namespace miniray {
namespace {

// Runs a function on each rank. It returns what the rank reports to the coordinator.
using RankFunction = std::function<Value(Group&, Handle&)>;

std::vector<Worker> ranks_of(int count, const RankFunction& function) {
  std::vector<Worker> workers;
  for (int rank = 0; rank < count; ++rank)
    workers.emplace_back([function](Handle& handle) {
      Group group = Group::join(handle);
      try {
        handle.send(function(group, handle));
      } catch (const Error& error) {
        handle.send({{"error", error.what()}});
      }
      for (;;) (void)handle.recv();  // until the coordinator closes
    });
  return workers;
}

std::vector<Value> results_of(int count, const RankFunction& function, const CollectiveOptions& options = {}) {
  std::vector<Worker> workers = ranks_of(count, function);
  create_group(workers, options);
  std::vector<Value> results;
  for (Worker& worker : workers) results.push_back(worker.recv({.timeout_s = 60}));
  return results;
}

std::string error_in(const Value& report) {
  const Value* const error = report.kind() == Value::Kind::map ? report.find("error") : nullptr;
  return error != nullptr ? error->string() : "no error: " + report.text();
}

template <class T>
T element(int number) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(number);
  else
    return T(static_cast<float>(number));
}

template <class T>
std::vector<T> numbers_of(Group& group, std::size_t count) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = element<T>((group.rank() + 1) * static_cast<int>(i % 100 + 1));
  return numbers;
}

template <class T>
bool sums_are_right(Group& group, std::size_t count) {
  std::vector<T> numbers = numbers_of<T>(group, count);
  group.all_reduce(std::span(numbers));
  const int factor = group.size() * (group.size() + 1) / 2;
  for (std::size_t i = 0; i < count; ++i)
    if (numbers[i] != element<T>(factor * static_cast<int>(i % 100 + 1))) return false;
  return true;
}

}  // namespace

TEST_CASE("all_reduce sums up, whatever the size") {
  for (const int ranks : {1, 2, 3, 5}) {
    const auto results = results_of(ranks, [](Group& group, Handle&) {
      for (const std::size_t count : {0UL, 1UL, 5UL, 1000UL, 4097UL, 131'072UL, 300'001UL, 1'000'000UL})
        if (!sums_are_right<float>(group, count)) return Value(count);
      const bool others = sums_are_right<double>(group, 70'001) && sums_are_right<std::int32_t>(group, 70'001) &&
                          sums_are_right<std::int64_t>(group, 5) && sums_are_right<std::complex<float>>(group, 3000);
      return Value(others ? "right" : "another dtype");
    });
    for (const Value& result : results) CHECK(result == Value("right"));
  }
}

TEST_CASE("the other operations") {
  const auto results = results_of(3, [](Group& group, Handle&) -> Value {
    constexpr std::size_t part = 200'003;
    const auto rank = static_cast<std::size_t>(group.rank());
    std::vector<std::int32_t> all(3 * part);
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::int32_t> mine(part), gathered(3 * part);
    group.scatter(std::span<const std::int32_t>(group.rank() == 1 ? all : std::vector<std::int32_t>()), std::span(mine),
                  1);
    for (std::size_t i = 0; i < part; ++i)
      if (mine[i] != static_cast<std::int32_t>(rank * part + i)) return "scatter";
    group.all_gather(std::span<const std::int32_t>(mine), std::span(gathered));
    if (gathered != all) return "all_gather";
    std::vector<std::int32_t> at_root(group.rank() == 2 ? 3 * part : 0);
    group.gather(std::span<const std::int32_t>(mine), std::span(at_root), 2);
    if (group.rank() == 2 && at_root != all) return "gather";
    group.reduce_scatter(std::span<const std::int32_t>(all), std::span(mine));
    for (std::size_t i = 0; i < part; ++i)
      if (mine[i] != 3 * static_cast<std::int32_t>(rank * part + i)) return "reduce_scatter";
    std::vector<double> numbers(part, group.rank() + 1.0);
    group.reduce(std::span(numbers), ReduceOp::product, 1);
    if (numbers.back() != (group.rank() == 1 ? 6.0 : group.rank() + 1.0)) return "reduce";
    group.broadcast(std::span(numbers), 1);
    if (numbers.front() != 6.0 || numbers.back() != 6.0) return "broadcast";
    std::vector<std::int64_t> extreme{group.rank(), -group.rank()};
    group.all_reduce(std::span(extreme), ReduceOp::max);
    if (extreme != std::vector<std::int64_t>{2, 0}) return "max";
    extreme = {group.rank(), -group.rank()};
    group.all_reduce(std::span(extreme), ReduceOp::min);
    if (extreme != std::vector<std::int64_t>{0, -2}) return "min";
    group.barrier();
    return "right";
  });
  for (const Value& result : results) CHECK(result == Value("right"));
}

TEST_CASE("no rank passes a barrier before all have reached it") {
  const auto results = results_of(3, [](Group& group, Handle&) -> Value {
    std::int64_t turn = 0;
    for (std::int64_t i = 0; i < 2000; ++i) {
      std::vector<std::int64_t> all(3);
      turn = i;
      group.all_gather(std::span<const std::int64_t>(&turn, 1), std::span(all));
      for (const std::int64_t other : all)
        if (other != i) return other;
      group.barrier();
    }
    return "right";
  });
  for (const Value& result : results) CHECK(result == Value("right"));
}

TEST_CASE("a rank that dies makes the others fail, in each phase") {
  for (const int phase : {0, 1, 2}) {
    CAPTURE(phase);
    std::vector<Worker> workers = ranks_of(3, [phase](Group& group, Handle&) -> Value {
      std::vector<float> numbers(3'000'000, 1.0F);  // several rounds
      if (phase >= 1) group.all_reduce(std::span(numbers));
      if (group.rank() == 1 && phase == 2) {
        alarm(1);
        signal(SIGALRM, [](int) { raise(SIGKILL); });
        for (;;) group.all_reduce(std::span(numbers));  // dies in the middle of a round
      }
      if (group.rank() == 1) raise(SIGKILL);
      for (;;) group.all_reduce(std::span(numbers));
    });
    create_group(workers);
    for (const std::size_t rank : {0UL, 2UL})
      CHECK(error_in(workers[rank].recv({.timeout_s = 60})).find("rank 1 (worker") != std::string::npos);
    CHECK_THROWS_AS((void)workers[1].recv({.timeout_s = 60}), WorkerDied);
  }
}

TEST_CASE("a rank that dies before it has joined makes the others fail") {
  std::vector<Worker> workers;
  for (int rank = 0; rank < 2; ++rank)
    workers.emplace_back([rank](Handle& handle) {
      if (rank == 1) raise(SIGKILL);
      try {
        const Group group = Group::join(handle);
        handle.send("joined");
      } catch (const Error& error) {
        handle.send(error.what());
      }
    });
  try {
    create_group(workers);
  } catch (const WorkerDied&) {  // if it has died already
  }
  const std::string heard = workers[0].recv({.timeout_s = 60}).string();
  CHECK_THROWS_AS((void)workers[1].recv({.timeout_s = 60}), WorkerDied);
  CHECK(heard.find("rank 1 (worker " + std::to_string(workers[1].pid()) + ") has died") != std::string::npos);
}

TEST_CASE("a rank that leaves makes the others fail") {
  const auto results = results_of(2, [](Group& group, Handle&) -> Value {
    if (group.rank() == 1) {
      const Group leaves = std::move(group);
      return "left";
    }
    group.barrier();
    return "passed";
  });
  CHECK(error_in(results[0]).find("rank 1 (worker") != std::string::npos);
  CHECK(error_in(results[0]).find("has left the group") != std::string::npos);
}

TEST_CASE("different calls are refused on all ranks, and the error names both") {
  for (const int fault : {0, 1, 2, 3}) {
    CAPTURE(fault);
    const auto results = results_of(2, [fault](Group& group, Handle&) -> Value {
      std::vector<float> numbers(100'000);
      std::vector<double> others(50'000);
      const bool differs = group.rank() == 1;
      if (fault == 0 && differs)
        group.all_reduce(std::span(numbers).first(99'999));
      else if (fault == 1 && differs)
        group.all_reduce(std::span(others));
      else if (fault == 2 && differs)
        group.barrier();
      else if (fault == 3 && differs)
        group.all_reduce(std::span(numbers), ReduceOp::max);
      else
        group.all_reduce(std::span(numbers));
      return "went well";
    });
    for (const Value& result : results) {
      CHECK(error_in(result).find("all_reduce(sum, 100000 x float32)") != std::string::npos);
      CHECK(error_in(result).find(fault == 0   ? "all_reduce(sum, 99999 x float32)"
                                  : fault == 1 ? "all_reduce(sum, 50000 x float64)"
                                  : fault == 2 ? "barrier()"
                                               : "all_reduce(max, 100000 x float32)") != std::string::npos);
    }
  }
}

TEST_CASE("a rank that is missing is named after the time-out, and the group is broken") {
  const auto results = results_of(3,
                                  [](Group& group, Handle& handle) -> Value {
                                    if (group.rank() == 2) {
                                      try {
                                        (void)handle.recv({.timeout_s = 1.5});  // does something else
                                      } catch (const TimeoutError&) {
                                      }
                                    }
                                    std::int32_t one = 1;
                                    group.all_reduce(std::span(&one, 1));
                                    return "went well";
                                  },
                                  {.timeout_s = 0.3});
  const std::string first = error_in(results[0]), second = error_in(results[1]);
  const bool named = first.find("missing is rank 2 (worker") != std::string::npos ||
                     second.find("missing is rank 2 (worker") != std::string::npos;
  CHECK_MESSAGE(named, first << " / " << second);
  CHECK(error_in(results[2]).find("gave up waiting") != std::string::npos);
}

TEST_CASE("spans of a fixed extent are taken, as those of std::array") {
  const auto results = results_of(2, [](Group& group, Handle&) -> Value {
    std::array<float, 3> sums{1, 2, 3};
    group.all_reduce(std::span(sums));
    group.reduce(std::span(sums));
    group.broadcast(std::span(sums));
    const std::array<int, 1> part{group.rank()};
    std::array<int, 2> all{};
    group.all_gather(std::span(part), std::span(all));
    group.gather(std::span(part), std::span(all), 1);
    return List{sums[2], all[1]};
  });
  for (const Value& result : results) CHECK(result == Value(List{12.0, 1}));
}

TEST_CASE("mistakes in calls leave the group usable") {
  const auto results = results_of(2, [](Group& group, Handle&) -> Value {
    List texts;
    const auto try_out = [&](const auto& mistake) {
      try {
        mistake();
        texts.emplace_back("no error");
      } catch (const UsageError& error) {
        texts.emplace_back(error.what());
      }
    };
    std::vector<float> part(3), all(5);
    try_out([&] { group.all_gather(std::span<const float>(part), std::span(all)); });
    try_out([&] { group.broadcast(std::span(part), 2); });
    std::vector<std::complex<double>> complex(1);
    try_out([&] { group.all_reduce(std::span(complex), ReduceOp::max); });
    try_out([&] { group.all_reduce(std::span(part), static_cast<ReduceOp>(77)); });
    group.barrier();
    return texts;
  });
  for (const Value& result : results) {
    CHECK(result.at(0).string().find("2 parts of 12 bytes are needed") != std::string::npos);
    CHECK(result.at(1).string().find("there is no rank 2") != std::string::npos);
    CHECK(result.at(2).string().find("cannot reduce elements of complex128 by max") != std::string::npos);
    CHECK(result.at(3).string().find("there is no reduction 77") != std::string::npos);
  }
}

TEST_CASE("a worker whose next message is no invitation says so") {
  Worker worker([](Handle& handle) {
    try {
      (void)Group::join(handle);
    } catch (const UsageError& error) {
      handle.send(error.what());
    }
  });
  worker.send({{"cmd", "start"}});
  CHECK(worker.recv({.timeout_s = 60}).string().find("an invitation to a group was expected") != std::string::npos);
  std::vector<Worker*> twice{&worker, &worker};
  CHECK_THROWS_WITH_AS(create_group(twice), doctest::Contains("is in the list twice"), UsageError);
  CHECK_THROWS_WITH_AS(create_group(std::span<Worker>()), doctest::Contains("at least one worker"), UsageError);
}

}  // namespace miniray
