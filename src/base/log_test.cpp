#include "base/log.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/system.hpp"
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

TEST_CASE("a full standard error drops messages instead of waiting, and the next message counts them") {
  const ChildEnd end = end_of_child([] {
    // Shared with nobody else; still, the log must not make it one that does not block.
    auto [reading, writing] = system::make_pipe();
    const Fd before = system::duplicate(STDERR_FILENO);
    fcntl(writing.get(), F_SETFL, O_NONBLOCK);
    const std::string much(65536, '.');
    while (write(writing.get(), much.data(), much.size()) > 0) {
    }
    fcntl(writing.get(), F_SETFL, 0);
    system::replace_descriptor(writing.get(), STDERR_FILENO);
    for (int i = 0; i < 3; ++i) log(LogLevel::warning, "nobody reads this");
    const bool blocks = (fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK) == 0;
    fcntl(reading.get(), F_SETFL, O_NONBLOCK);
    std::string room(65536, '\0');
    while (read(reading.get(), room.data(), room.size()) > 0) {
    }
    log(LogLevel::warning, "read again");
    const ssize_t bytes = read(reading.get(), room.data(), room.size());
    system::replace_descriptor(before.get(), STDERR_FILENO);
    const std::string said = bytes > 0 ? room.substr(0, static_cast<std::size_t>(bytes)) : "";
    std::fputs(said.c_str(), stderr);
    return blocks ? 0 : 1;
  });
  CHECK(end.exit_code == 0);
  CHECK(end.said == "miniray: 3 lines of the log were dropped, because nobody read them\nminiray: read again\n");
}

TEST_CASE("a long message that a pipe takes in part does not swallow the next one") {
  const ChildEnd end = end_of_child([] {
    auto [reading, writing] = system::make_pipe();
    const Fd before = system::duplicate(STDERR_FILENO);
    fcntl(reading.get(), F_SETFL, O_NONBLOCK);
    system::replace_descriptor(writing.get(), STDERR_FILENO);
    log(LogLevel::warning, std::string(1'000'000, 'x'));  // more than a pipe holds
    std::string said, room(65536, '\0');
    const auto read_all = [&, &reading = reading] {
      for (ssize_t bytes = 1; (bytes = read(reading.get(), room.data(), room.size())) > 0;)
        said.append(room.data(), static_cast<std::size_t>(bytes));
    };
    read_all();
    log(LogLevel::warning, "next");
    read_all();
    system::replace_descriptor(before.get(), STDERR_FILENO);
    return said.starts_with("miniray: xxx") &&
                   said.ends_with(
                       "xxx\nminiray: 1 line of the log was dropped, because nobody read it\nminiray: next\n")
               ? 0
               : 1;
  });
  CHECK(end.exit_code == 0);
}

TEST_CASE("a log whose reader has gone, or that is closed, ends nothing") {
  const ChildEnd end = end_of_child([] {
    auto [reading, writing] = system::make_pipe();
    system::replace_descriptor(writing.get(), STDERR_FILENO);
    reading.reset();
    log(LogLevel::warning, "no reader");
    close(STDERR_FILENO);
    log(LogLevel::warning, "no descriptor");
    return 0;
  });
  CHECK(end.exit_code == 0);
  CHECK(end.signal == 0);
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
