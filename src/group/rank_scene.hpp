// Ranks of a group that run a function and report its result, and functions for them.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <complex>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "miniray/group.hpp"

namespace miniray {
namespace {

// Runs a function on each rank. It returns what the rank reports to the coordinator.
using RankFunction = std::function<Value(Group&, Handle&)>;

inline WorkFunction as_rank(RankFunction function) {
  return [function = std::move(function)](Handle& handle) {
    try {
      Group group = Group::join(handle);
      handle.send(function(group, handle));
    } catch (const EndOfStream&) {
      throw;
    } catch (const Error& error) {
      handle.send({{"error", error.what()}});
    }
    for (;;) (void)handle.recv();  // until the coordinator closes
  };
}

// The ranks are on one machine.
inline std::vector<Worker> ranks_of(int count, const RankFunction& function) {
  std::vector<Worker> workers;
  for (int rank = 0; rank < count; ++rank) workers.emplace_back(as_rank(function));
  return workers;
}

// Each rank pretends to be on the machine with the letter at its position: "aab" is two ranks on one and one on
// another.
inline std::vector<Worker> spread_ranks(std::string_view machines, const RankFunction& function) {
  std::vector<Worker> workers;
  for (const char machine : machines) {
    const WorkFunction work = [machine, rank = as_rank(function)](Handle& handle) {
      setenv("MINIRAY_TEST_GROUP_NODE", std::string(1, machine).c_str(), 1);
      rank(handle);
    };
    workers.emplace_back(work, WorkerOptions{.shared_memory = false});
  }
  return workers;
}

inline std::vector<Value> results_of(std::vector<Worker> workers, const CollectiveOptions& options = {}) {
  create_group(workers, options);
  std::vector<Value> results;
  for (Worker& worker : workers) results.push_back(worker.recv({.timeout_s = 60}));
  return results;
}

inline std::string error_in(const Value& report) {
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
bool sums_are_right(Group& group, std::size_t count) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = element<T>((group.rank() + 1) * static_cast<int>(i % 100 + 1));
  group.all_reduce(std::span(numbers));
  const int factor = group.size() * (group.size() + 1) / 2;
  for (std::size_t i = 0; i < count; ++i)
    if (numbers[i] != element<T>(factor * static_cast<int>(i % 100 + 1))) return false;
  return true;
}

inline Value all_sums(Group& group, Handle& /*handle*/) {
  for (const std::size_t count : {0UL, 1UL, 5UL, 1000UL, 4097UL, 131'072UL, 300'001UL, 1'000'000UL})
    if (!sums_are_right<float>(group, count)) return Value(count);
  const bool others = sums_are_right<double>(group, 70'001) && sums_are_right<std::int32_t>(group, 70'001) &&
                      sums_are_right<std::int64_t>(group, 5) && sums_are_right<std::complex<float>>(group, 3000);
  return Value(others ? "right" : "another dtype");
}

// Tries the operations with this many elements for each rank. Returns "right", or the name of a wrong one.
inline Value operations_of(Group& group, std::size_t part) {
  using Numbers = std::vector<std::int32_t>;
  const auto rank = static_cast<std::size_t>(group.rank()), size = static_cast<std::size_t>(group.size());
  const int root = group.size() / 2, last = group.size() - 1;
  Numbers all(size * part), mine(part), gathered(size * part);
  std::iota(all.begin(), all.end(), 0);
  group.scatter(std::span<const std::int32_t>(group.rank() == root ? all : Numbers()), std::span(mine), root);
  for (std::size_t i = 0; i < part; ++i)
    if (mine[i] != static_cast<std::int32_t>(rank * part + i)) return "scatter";
  group.all_gather(std::span<const std::int32_t>(mine), std::span(gathered));
  if (gathered != all) return "all_gather";
  Numbers at_root(group.rank() == last ? size * part : 0);
  group.gather(std::span<const std::int32_t>(mine), std::span(at_root), last);
  if (group.rank() == last && at_root != all) return "gather";
  group.reduce_scatter(std::span<const std::int32_t>(all), std::span(mine));
  for (std::size_t i = 0; i < part; ++i)
    if (mine[i] != static_cast<std::int32_t>(size * (rank * part + i))) return "reduce_scatter";
  double product = 1;
  for (std::size_t i = 0; i < size; ++i) product *= static_cast<double>(i) + 1;
  for (int to = 0; to < group.size(); ++to) {
    std::vector<double> numbers(part, group.rank() + 1.0);
    group.reduce(std::span(numbers), ReduceOp::product, to);
    if (numbers != std::vector<double>(part, group.rank() == to ? product : group.rank() + 1.0)) return "reduce";
    group.broadcast(std::span(numbers), to);
    if (numbers != std::vector<double>(part, product)) return "broadcast";
  }
  std::vector<std::int64_t> extreme{group.rank(), -group.rank()};
  group.all_reduce(std::span(extreme), ReduceOp::max);
  if (extreme != std::vector<std::int64_t>{last, 0}) return "max";
  extreme = {group.rank(), -group.rank()};
  group.all_reduce(std::span(extreme), ReduceOp::min);
  if (extreme != std::vector<std::int64_t>{0, -last}) return "min";
  group.barrier();
  return "right";
}

inline Value barriers(Group& group, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
    const std::int64_t turn = i;
    group.all_gather(std::span<const std::int64_t>(&turn, 1), std::span(all));
    for (const std::int64_t other : all)
      if (other != i) return other;
    group.barrier();
  }
  return "right";
}

// The last rank differs from the others in a way that the number says.
inline RankFunction different_calls_of(int fault) {
  return [fault](Group& group, Handle&) -> Value {
    std::vector<float> numbers(100'000);
    std::vector<double> others(50'000);
    const bool differs = group.rank() == group.size() - 1;
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
  };
}

inline void check_both_calls(const Value& result, int fault) {
  CHECK(error_in(result).find("all_reduce(sum, 100000 x float32)") != std::string::npos);
  CHECK(error_in(result).find(fault == 0   ? "all_reduce(sum, 99999 x float32)"
                              : fault == 1 ? "all_reduce(sum, 50000 x float64)"
                              : fault == 2 ? "barrier()"
                                           : "all_reduce(max, 100000 x float32)") != std::string::npos);
}

}  // namespace
}  // namespace miniray
