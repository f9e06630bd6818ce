#include "base/fork_safety.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/system.hpp"
#include "tests/child_end.hpp"
#include "tests/sanitized.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

using Parallel = void(void (*)(void*), void*, unsigned, unsigned);

// Returns how many threads a parallel region of GNU OpenMP had.
int run_in_parallel(void* library, unsigned threads) {
  auto* parallel = reinterpret_cast<Parallel*>(dlsym(library, "GOMP_parallel"));
  std::atomic<int> were_there = 0;
  parallel([](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &were_there, threads, 0);
  return were_there;
}

}  // namespace

TEST_CASE("without the CUDA driver there is no context, and with it only if the driver reports one") {
  CHECK_FALSE(cuda_context_is_live());
  CHECK(end_of_child([] {
          void* const driver = dlopen(FAKE_CUDA, RTLD_NOW);
          if (driver == nullptr) return 1;
          if (cuda_context_is_live()) return 2;  // before cuInit
          const auto set = reinterpret_cast<void (*)(int, int)>(dlsym(driver, "fake_set"));
          set(4, -1);
          if (cuda_context_is_live()) return 3;
          set(4, 3);  // on the last device
          return cuda_context_is_live() ? 0 : 4;
        }).exit_code == 0);
}

TEST_CASE("without threads of GNU OpenMP there is nothing to do after a fork") {
  const OpenMpAfterFork openmp;
  CHECK_FALSE(openmp.needed());
  openmp.run_in_child();
}

TEST_CASE("threads that GNU OpenMP has not started are none of its threads" * doctest::skip(under_tsan)) {
  const ChildEnd end = end_of_child([] {
    void* const library = dlopen("libgomp.so.1", RTLD_NOW);
    if (library == nullptr) return 1;
    const auto threads_max = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads"));
    std::atomic<bool> stop = false;
    std::atomic<int> called = 0;
    const auto work = [&](bool busy) {
      called += threads_max() > 0;  // its addresses stay on the stack
      while (busy && !stop) {
      }
      stop.wait(false);
    };
    std::jthread computing(work, true), waiting(work, false);
    wait_until("two calls into the library", [&] { return called == 2; });
    const bool needed = OpenMpAfterFork().needed();
    stop = true;
    stop.notify_all();
    return needed ? 2 : 0;
  });
  CHECK(end.exit_code == 0);
}

TEST_CASE("a child of a process with threads of GNU OpenMP runs its parallel regions, on one thread" *
          doctest::skip(under_tsan)) {
  const ChildEnd end = end_of_child([] {
    void* const library = dlopen("libgomp.so.1", RTLD_NOW);
    if (library == nullptr) return 1;
    if (OpenMpAfterFork().needed()) return 2;  // the library is loaded, and has no threads yet
    if (run_in_parallel(library, 3) != 3) return 3;
    const OpenMpAfterFork openmp;
    if (!openmp.needed()) return 4;
    const ChildEnd grandchild = end_of_child([&] {
      openmp.run_in_child();
      return run_in_parallel(library, 0) == 1 ? 0 : 1;
    });
    return grandchild.exit_code == 0 ? 0 : 5;
  });
  CHECK(end.exit_code == 0);
}

}  // namespace miniray
