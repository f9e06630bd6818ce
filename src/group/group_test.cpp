// Groups of ranks: results, and what the other ranks hear when one of them fails.
#include "miniray/group.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <complex>
#include <numeric>

#include "group/rank_scene.hpp"

namespace miniray {

TEST_CASE("all_reduce sums up, whatever the size") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const Value& result : results_of(ranks_of(ranks, all_sums))) CHECK(result == Value("right"));
  }
}

TEST_CASE("the other operations") {
  for (const Value& result :
       results_of(ranks_of(3, [](Group& group, Handle&) { return operations_of(group, 200'003); })))
    CHECK(result == Value("right"));
}

TEST_CASE("no rank passes a barrier before all have reached it") {
  const auto results = results_of(ranks_of(3, [](Group& group, Handle&) { return barriers(group, 2000); }));
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

TEST_CASE("all others hear of a rank that had died before the group was made, whether they come before it or after") {
  for (const bool spread : {false, true}) {
    CAPTURE(spread);
    const RankFunction joins = [](Group&, Handle&) -> Value { return "joined"; };
    std::vector<Worker> workers = spread ? spread_ranks("aba", joins) : ranks_of(3, joins);
    workers[1].kill();
    (void)workers[1].wait(60);
    CHECK_THROWS_AS(create_group(workers), WorkerDied);
    for (const std::size_t rank : {0UL, 2UL}) {
      const std::string error = error_in(workers[rank].recv({.timeout_s = 60}));
      CHECK_MESSAGE(error.find(workers[1].name()) != std::string::npos, error);
    }
  }
}

TEST_CASE("a rank that leaves makes the others fail") {
  const auto results = results_of(ranks_of(2, [](Group& group, Handle&) -> Value {
    if (group.rank() == 1) {
      const Group leaves = std::move(group);
      return "left";
    }
    group.barrier();
    return "passed";
  }));
  CHECK(error_in(results[0]).find("rank 1 (worker") != std::string::npos);
  CHECK(error_in(results[0]).find("has left the group") != std::string::npos);
}

TEST_CASE("different calls are refused on all ranks, and the error names both") {
  for (const int fault : {0, 1, 2, 3}) {
    CAPTURE(fault);
    for (const Value& result : results_of(ranks_of(2, different_calls_of(fault)))) check_both_calls(result, fault);
  }
}

TEST_CASE("a rank that is missing is named after the time-out, and the group is broken") {
  const auto results = results_of(ranks_of(3,
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
                                           }),
                                  {.timeout_s = 0.3});
  const std::string first = error_in(results[0]), second = error_in(results[1]);
  const bool named = first.find("missing is rank 2 (worker") != std::string::npos ||
                     second.find("missing is rank 2 (worker") != std::string::npos;
  CHECK_MESSAGE(named, first << " / " << second);
  CHECK(error_in(results[2]).find("gave up waiting") != std::string::npos);
}

TEST_CASE("spans of a fixed extent are taken, as those of std::array") {
  const auto results = results_of(ranks_of(2, [](Group& group, Handle&) -> Value {
    std::array<float, 3> sums{1, 2, 3};
    group.all_reduce(std::span(sums));
    group.reduce(std::span(sums));
    group.broadcast(std::span(sums));
    const std::array<int, 1> part{group.rank()};
    std::array<int, 2> all{};
    group.all_gather(std::span(part), std::span(all));
    group.gather(std::span(part), std::span(all), 1);
    return List{sums[2], all[1]};
  }));
  for (const Value& result : results) CHECK(result == Value(List{12.0, 1}));
}

TEST_CASE("elements are taken from any range that has them in one piece") {
  const auto results = results_of(ranks_of(2, [](Group& group, Handle&) -> Value {
    const int rank = group.rank();
    std::vector<int> sums{1, rank}, all{10 * rank, 10 * rank + 1}, part(1);
    group.all_reduce(sums);
    group.reduce(sums, ReduceOp::max, 1);
    group.broadcast(sums, 1);
    group.scatter(std::span(all), std::span(part), 1);
    int gathered[2]{};
    group.gather(part, gathered, 0);
    group.broadcast(gathered);
    group.all_gather(part, all);
    group.reduce_scatter(all, part);
    return List{sums[0], sums[1], gathered[0], gathered[1], all[0], all[1], part[0]};
  }));
  CHECK(results[0] == Value(List{2, 1, 10, 11, 10, 11, 20}));
  CHECK(results[1] == Value(List{2, 1, 10, 11, 10, 11, 22}));
}

TEST_CASE("a group that was moved from says so, and the other one goes on") {
  const auto results = results_of(ranks_of(2, [](Group& group, Handle&) -> Value {
    Group moved = std::move(group);
    std::vector<int> ones{1};
    CHECK_THROWS_WITH_AS(group.barrier(), doctest::Contains("this Group was moved from"), UsageError);
    CHECK_THROWS_WITH_AS(group.all_reduce(ones), doctest::Contains("this Group was moved from"), UsageError);
    CHECK_THROWS_WITH_AS((void)group.rank(), doctest::Contains("this Group was moved from"), UsageError);
    moved.all_reduce(ones);
    group = std::move(moved);
    group.all_reduce(ones);
    return ones[0];
  }));
  for (const Value& result : results) CHECK(result == Value(4));
}

TEST_CASE("mistakes in calls leave the group usable") {
  const auto results = results_of(ranks_of(2, [](Group& group, Handle&) -> Value {
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
  }));
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
