// Calls and tasks that crash, throw or take too long in lambdas, for tests/crash_stack_test.py. It prints their errors,
// each after a line "== name".
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <vector>

#include "miniray/pool.hpp"

// An empty statement that the compiler must keep, so that the call before it does not become a jump.
#define STAY asm volatile("")

namespace {

volatile int* volatile nothing = nullptr;

[[gnu::noinline]] int deep(int value) {
  *nothing = value;
  STAY;
  return value;
}

[[gnu::noinline]] int throws(int value) {
  if (value != 0) throw std::out_of_range("no such row");
  STAY;
  return value;
}

struct Table {
  int row = 0;
};

template <class Call>
void print(const char* name, Call call) {
  std::printf("== %s\n", name);
  try {
    call();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
}

void in_pool() {
  miniray::Pool pool(1);
  print("typed crash", [&] {
    auto future = pool.submit(
        [](int x) {
          const int y = deep(x);  // typed crash
          STAY;
          return y;
        },
        1);
    (void)future.get();
  });
  print("registered crash", [&] { (void)pool.submit("crash", 1).get(); });
  print("typed throw", [&] {
    auto future = pool.submit(
        [](int x) {
          const int y = throws(x);  // typed throw
          STAY;
          return y;
        },
        1);
    (void)future.get();
  });
  print("registered throw", [&] { (void)pool.submit("throw", 1).get(); });
  print("map", [&] { (void)pool.map("throw", std::vector<int>{0, 1, 1}); });
  print("wrong argument", [&] { (void)pool.submit("throw", "one").get(); });
  print("timeout", [&] {
    auto future = pool.with({.timeout_s = 0.1})
                      .submit(
                          [](int x) {
                            for (;;) STAY;  // timeout
                            return x;
                          },
                          1);
    (void)future.get();
  });
}

void in_workers() {
  miniray::Worker worker(miniray::serve_calls);
  miniray::Caller caller(worker);
  caller.create("table", "Table");
  print("method", [&] { (void)caller.call("table.throw", 1); });
  print("work function", [&] {
    miniray::Worker crashing([](miniray::Handle& handle) {
      const int y = deep(handle.recv<int>());  // work function
      STAY;
      handle.send(y);
    });
    crashing.send(1);
    (void)crashing.recv();
  });
}

}  // namespace

int main() {
  miniray::registry().add("crash", [](int x) {
    const int y = deep(x);  // registered crash
    STAY;
    return y;
  });
  miniray::registry().add("throw", [](int x) {
    const int y = throws(x);  // registered throw
    STAY;
    return y;
  });
  miniray::registry().add_class<Table>("Table").method("throw", [](Table& table, int x) {
    table.row = throws(x);  // method
    STAY;
  });
  in_pool();
  in_workers();
}
