// A worker that ends as its argument says, for tests/crash_stack_test.py. Its coordinator prints the error.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#include "miniray/worker.hpp"

// An empty statement that the compiler must keep, so that the call before it does not become a jump.
#define STAY asm volatile("")

namespace {

volatile int* volatile nothing = nullptr;

[[gnu::noinline]] void hidden_crash(int value) {
  *nothing = value;
  STAY;
}

[[gnu::noinline]] int recurse(int depth) {
  if (depth == 0) hidden_crash(depth);
  const int below = depth == 0 ? 0 : recurse(depth - 1);
  STAY;
  return below + 1;
}

[[gnu::noinline]] int overflow(int depth) {
  char room[512];
  std::memset(room, depth, sizeof(room));
  const int below = overflow(depth + room[7] + 1);
  asm volatile("" : : "r"(room));
  return below + 1;
}

struct Cleaner {
  ~Cleaner() { STAY; }
};

[[gnu::noinline]] void throw_here() {
  const Cleaner cleaner;
  throw std::out_of_range("no such row");
}

}  // namespace

static void work(miniray::Handle& handle) {
  const std::string how = handle.recv()["how"].string();
  const std::function<void(int)> in_a_lambda = [](int value) {
    hidden_crash(value);
    STAY;
  };
  if (how == "static") hidden_crash(1);
  if (how == "lambda") in_a_lambda(2);
  if (how == "recursion") recurse(60);
  if (how == "overflow") overflow(1);
  if (how == "abort") std::abort();
  if (how == "throw") throw_here();
  if (how == "used after delete") {
    volatile char* volatile bytes = new char[8];
    delete[] bytes;
    bytes[3] = 1;
  }
  STAY;
}

int main(int, char** arguments) {
  miniray::Worker worker(work);
  worker.send({{"how", arguments[1]}});
  try {
    (void)worker.recv();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
}
