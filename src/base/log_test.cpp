#include "base/log.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/child_end.hpp"

namespace miniray {

TEST_CASE("a message is printed, until the program sets a function, and again afterwards") {
  const ChildEnd end = end_of_child([] {
    std::string heard;
    log(LogLevel::warning, "first");
    set_log([&heard](LogLevel level, std::string_view text) {
      heard += std::to_string(static_cast<int>(level)) + std::string(text);
    });
    log(LogLevel::error, "second");
    log(LogLevel::info, "third", "server: third");
    set_log({});
    log(LogLevel::info, "fourth", "server: fourth");
    return heard == "2second0third" ? 0 : 1;
  });
  CHECK(end.exit_code == 0);
  CHECK(end.said == "miniray: first\nserver: fourth\n");
}

TEST_CASE("a function that throws loses no message") {
  const ChildEnd end = end_of_child([] {
    set_log([](LogLevel, std::string_view) { throw std::runtime_error("full disk"); });
    log(LogLevel::warning, "still here");
    return 0;
  });
  CHECK(end.exit_code == 0);
  CHECK(end.said == "miniray: still here\n");
}

// In this process: TSan allows no threads in a fork.
TEST_CASE("threads may log while others set the function") {
  static std::atomic<int> heard = 0;
  set_log([](LogLevel, std::string_view) { ++heard; });
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 100; ++j) {
        log(LogLevel::info, "x");
        set_log([](LogLevel, std::string_view) { ++heard; });
      }
    });
  }
  threads.clear();
  set_log({});
  CHECK(heard == 400);
}

}  // namespace miniray
