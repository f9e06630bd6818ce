// Groups whose ranks are on several machines, which one machine pretends to be: the ranks of two "machines" share no
// memory and watch no process of the other.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "base/network.hpp"
#include "group/rank_scene.hpp"
#include "worker/remote_scene.hpp"

namespace miniray {
namespace {

constexpr const char* placements[] = {"a", "ab", "aba", "abcab", "aaab", "abc"};

}  // namespace

TEST_CASE("all_reduce between machines sums up, whatever the size and the placement") {
  for (const char* const machines : placements) {
    CAPTURE(machines);
    for (const Value& result : results_of(spread_ranks(machines, all_sums))) CHECK(result == Value("right"));
  }
}

TEST_CASE("the other operations between machines") {
  for (const char* const machines : placements) {
    CAPTURE(machines);
    const auto results = results_of(spread_ranks(machines, [](Group& group, Handle&) -> Value {
      for (const std::size_t part : {0UL, 1UL, 7UL, 5000UL, 200'003UL})
        if (const Value result = operations_of(group, part); result != Value("right")) return {{"error", result}};
      return "right";
    }));
    for (const Value& result : results) CHECK(result == Value("right"));
  }
}

TEST_CASE("large arrays between machines, and the same bits on every rank and in every run") {
  const auto sums = [](Group& group, Handle&) -> Value {
    constexpr std::size_t count = 4'000'001;
    std::vector<float> numbers(count);
    for (std::size_t i = 0; i < count; ++i)
      numbers[i] = 1.0F / static_cast<float>(i % 977 + 3 + static_cast<std::size_t>(group.rank()));
    group.all_reduce(std::span(numbers));
    std::uint64_t hash = 1469598103934665603ULL;
    for (const float number : numbers) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &number, sizeof(bits));
      hash = (hash ^ bits) * 1099511628211ULL;
    }
    return std::to_string(hash);
  };
  const auto first = results_of(spread_ranks("abcab", sums)), second = results_of(spread_ranks("abcab", sums));
  for (const Value& result : first) CHECK(result == first[0]);
  CHECK(first == second);
}

TEST_CASE("no rank passes a barrier between machines before all have reached it") {
  const auto results = results_of(spread_ranks("abca", [](Group& group, Handle&) { return barriers(group, 300); }));
  for (const Value& result : results) CHECK(result == Value("right"));
}

TEST_CASE("a rank on another machine that dies makes the others fail, in each phase, whether it leads or not") {
  for (const char* const machines : {"abc", "bab", "aabb"}) {
    for (const int phase : {0, 1, 2}) {
      CAPTURE(machines);
      CAPTURE(phase);
      std::vector<Worker> workers = spread_ranks(machines, [phase](Group& group, Handle&) -> Value {
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
      for (std::size_t rank = 0; rank < workers.size(); ++rank) {
        if (rank == 1) continue;
        const std::string error = error_in(workers[rank].recv({.timeout_s = 60}));
        CHECK_MESSAGE(error.find("rank 1 (" + workers[1].name() + ") has died") != std::string::npos, error);
      }
      CHECK_THROWS_AS((void)workers[1].recv({.timeout_s = 60}), WorkerDied);
    }
  }
}

TEST_CASE("a rank that dies is named to ranks that wait while the others of its machine compute") {
  // Rank 1 dies, and rank 2, which could watch its process, never calls.
  std::vector<Worker> workers = spread_ranks("abb", [](Group& group, Handle& handle) -> Value {
    if (group.rank() == 1) raise(SIGKILL);
    if (group.rank() == 2) (void)handle.recv();
    group.barrier();
    return "passed";
  });
  create_group(workers);
  const std::string error = error_in(workers[0].recv({.timeout_s = 60}));
  CHECK_MESSAGE(error.find("rank 1 (" + workers[1].name() + ") has died") != std::string::npos, error);
  CHECK_THROWS_AS((void)workers[1].recv({.timeout_s = 60}), WorkerDied);
}

TEST_CASE("ranks that have done their part may end while others are still in the call") {
  for (int run = 0; run < 20; ++run) {
    std::vector<Worker> workers;
    for (const char machine : {'a', 'b', 'b', 'c'})
      workers.emplace_back(
          [machine](Handle& handle) {
            setenv("MINIRAY_TEST_GROUP_NODE", std::string(1, machine).c_str(), 1);
            Group group = Group::join(handle);
            std::vector<float> numbers(1'000'000, 1.0F);
            group.all_reduce(std::span(numbers));
            handle.send(numbers.back());
          },
          WorkerOptions{.shared_memory = false});
    create_group(workers);
    for (Worker& worker : workers) CHECK(worker.recv({.timeout_s = 60}) == Value(4.0));
  }
}

TEST_CASE("a fault in a later call does not reach a rank whose call is complete") {
  // Rank 1 leads the second machine and leaves after its first call, so rank 2 fails in its second one, at once.
  for (int run = 0; run < 20; ++run) {
    const auto results = results_of(spread_ranks("abba", [](Group& group, Handle&) -> Value {
      std::vector<float> numbers(100'000, 1.0F);
      group.all_reduce(std::span(numbers));
      const Value sum = numbers.back();
      if (group.rank() == 1) {
        const Group leaves = std::move(group);
        return sum;
      }
      try {
        group.barrier();
      } catch (const GroupBroken&) {
        return sum;
      }
      return "passed";
    }));
    for (const Value& result : results) CHECK(result == Value(4.0));
  }
}

TEST_CASE("a rank on another machine that leaves makes the others fail") {
  for (const int leaver : {0, 1, 3}) {
    const auto results = results_of(spread_ranks("abba", [leaver](Group& group, Handle&) -> Value {
      if (group.rank() == leaver) {
        const Group leaves = std::move(group);
        return "left";
      }
      group.barrier();
      return "passed";
    }));
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == leaver) continue;
      const std::string error = error_in(results[static_cast<std::size_t>(rank)]);
      CHECK_MESSAGE(error.find("rank " + std::to_string(leaver) + " (worker") != std::string::npos, error);
      CHECK_MESSAGE(error.find("has left the group") != std::string::npos, error);
    }
  }
}

TEST_CASE("different calls on different machines are refused on all ranks, and the error names both") {
  for (const char* const machines : {"ab", "aab", "abb"}) {
    for (const int fault : {0, 1, 2, 3}) {
      CAPTURE(machines);
      CAPTURE(fault);
      for (const Value& result : results_of(spread_ranks(machines, different_calls_of(fault))))
        check_both_calls(result, fault);
    }
  }
}

TEST_CASE("a rank on another machine that is missing is named after the time-out") {
  std::vector<Worker> workers = spread_ranks("ab", [](Group& group, Handle& handle) -> Value {
    if (group.rank() == 1) (void)handle.recv();  // does something else
    group.barrier();
    return "went well";
  });
  create_group(workers, {.timeout_s = 1});
  const std::string error = error_in(workers[0].recv({.timeout_s = 60}));
  CHECK_MESSAGE(error.find("in barrier(), and missing is rank 1 (worker") != std::string::npos, error);
  workers[1].send("go on");
  CHECK(error_in(workers[1].recv({.timeout_s = 60})).find("gave up waiting") != std::string::npos);
}

TEST_CASE("workers of worker servers form a group, also together with workers of this machine") {
  const RankFunction function = [](Group& group, Handle&) { return operations_of(group, 1000); };
  const Server server(as_rank(function));
  RemoteOptions first, second;
  first.environment["MINIRAY_TEST_GROUP_NODE"] = "a";
  second.environment["MINIRAY_TEST_GROUP_NODE"] = "b";
  Worker one = server.connect(first), two = server.connect(second), three = server.connect(first);
  Worker local(as_rank(function));
  std::vector<Worker*> workers{&one, &local, &two, &three};
  create_group(workers);
  for (Worker* worker : workers) CHECK(worker->recv({.timeout_s = 60}) == Value("right"));
}

TEST_CASE("messages that workers sent before they join are kept, in order") {
  std::vector<Worker> workers;
  for (int i = 0; i < 2; ++i)
    workers.emplace_back(
        [](Handle& handle) {
          handle.send("one");
          handle.send({{"miniray", "two"}});
          Group group = Group::join(handle);
          handle.send(group.rank());
        },
        WorkerOptions{.shared_memory = false});
  create_group(workers);
  for (int rank = 0; rank < 2; ++rank) {
    Worker& worker = workers[static_cast<std::size_t>(rank)];
    CHECK(worker.recv({.timeout_s = 60}) == Value("one"));
    CHECK(worker.recv({.timeout_s = 60})["miniray"] == Value("two"));
    CHECK(worker.recv({.timeout_s = 60}) == Value(rank));
  }
}

TEST_CASE("a worker that has received the invitation can still join, and tell it from other messages") {
  const WorkFunction work = [](Handle& handle) {
    for (;;) {
      const Message message = handle.receive();
      if (is_invitation(message))
        handle.send(Group::accept(handle, decode(message)).rank());
      else
        handle.send("no invitation");
    }
  };
  for (const Codec codec : {Codec::msgpack, Codec::json}) {
    for (const bool share : {true, false}) {
      Worker worker(work, WorkerOptions{.codec = codec, .shared_memory = share});
      worker.send({{"miniray", "group"}});
      CHECK(worker.recv({.timeout_s = 60}) == Value("no invitation"));
      create_group(std::span(&worker, 1));
      CHECK(worker.recv({.timeout_s = 60}) == Value(0));
    }
  }
}

TEST_CASE("a worker that dies while a group is made ends create_group and the other ranks' join") {
  std::vector<Worker> workers = spread_ranks("aab", [](Group&, Handle&) { return Value("joined"); });
  workers[1] = Worker(
      [](Handle& handle) {
        (void)handle.recv();
        raise(SIGKILL);
      },
      WorkerOptions{.shared_memory = false});
  CHECK_THROWS_AS(create_group(workers), WorkerDied);
  for (const std::size_t rank : {0UL, 2UL})
    CHECK(error_in(workers[rank].recv({.timeout_s = 60})).find("was killed by SIGKILL") != std::string::npos);
}

TEST_CASE("a worker that does not join is named, the others fail, and all can be used further") {
  std::vector<Worker> workers = spread_ranks("ab", [](Group&, Handle&) { return Value("joined"); });
  workers.emplace_back(
      [](Handle& handle) {
        handle.send("busy");
        while (handle.recv() != Value("join now")) {
        }
      },
      WorkerOptions{.shared_memory = false});
  CHECK_THROWS_WITH_AS(create_group(workers, {.timeout_s = 0.5}),
                       doctest::Contains("these have not joined: rank 2 (worker"), TimeoutError);
  CHECK(error_in(workers[0].recv({.timeout_s = 60})).find("have not joined: rank 2") != std::string::npos);
  CHECK(workers[2].recv({.timeout_s = 60}) == Value("busy"));
}

TEST_CASE("ranks that cannot reach each other say where, and the cure") {
  std::vector<Worker> workers = spread_ranks("ab", [](Group&, Handle&) { return Value("joined"); });
  // All ports of the range but one are free for rank 0; rank 1 then has none.
  const Fd taken = network::listen(network::resolve("", 0).front());
  const int port = network::local_port(taken.get());
  CHECK_THROWS_WITH_AS(create_group(workers, {.first_port = port, .last_port = port}),
                       doctest::Contains("are taken. Give the group a larger range"), GroupBroken);
  for (Worker& worker : workers)
    CHECK(error_in(worker.recv({.timeout_s = 60})).find("cannot make the group") != std::string::npos);
  CHECK_THROWS_WITH_AS(create_group(workers, {.first_port = 9, .last_port = 8}), doctest::Contains("not 9 to 8"),
                       UsageError);
}

}  // namespace miniray
