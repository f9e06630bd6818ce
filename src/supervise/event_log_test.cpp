#include "miniray/event_log.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "miniray/error.hpp"
#include "wire/json_text.hpp"

namespace miniray {

TEST_CASE("events come back in order, by kind and by time") {
  EventLog log;
  log.add(
      {.kind = "worker_died", .node = "node1", .worker = "worker 7", .text = "it died", .details = {{"signal", 9}}});
  log.add({.kind = "worker_restarted", .node = "node1"});
  log.add({.kind = "worker_died", .node = "node2"});
  const std::vector<Event> all = log.events();
  REQUIRE(all.size() == 3);
  CHECK(all[0].details["signal"] == Value(9));
  CHECK(all[0].time_s < all[1].time_s);
  CHECK(all[1].time_s < all[2].time_s);
  CHECK(log.events("worker_died").size() == 2);
  CHECK(log.events("worker_died", all[0].time_s).at(0).node == "node2");
  CHECK(log.events({}, all[2].time_s).empty());
  using std::chrono::system_clock;
  CHECK(log.events({}, system_clock::now() - std::chrono::hours(1)).size() == 3);
  CHECK(log.events({}, system_clock::now() + std::chrono::hours(1)).empty());
}

TEST_CASE("control characters in a text are escaped, and lines and tabs are kept") {
  EventLog log;
  log.add({.kind = "a", .text = "it raised ValueError: a\x1b[31m\n\tb\\x1b"});
  CHECK(log.events().at(0).text == "it raised ValueError: a\\x1b[31m\n\tb\\x1b");
}

TEST_CASE("the oldest are forgotten, but not in the file") {
  char path[] = "/tmp/miniray-test-XXXXXX";
  const int descriptor = mkstemp(path);
  REQUIRE(descriptor >= 0);
  close(descriptor);
  {
    EventLog log(2);
    log.add({.kind = "before"});
    log.write_to(path);
    for (const char* kind : {"a", "b \"quoted\"\nline"}) log.add({.kind = kind});
    CHECK(log.size() == 2);
    CHECK(log.forgotten() == 1);
    CHECK(log.events().front().kind == "a");
  }
  std::ifstream file(path);
  std::vector<Value> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(read_json_text(line));
  unlink(path);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["kind"] == Value("before"));
  CHECK(lines[0]["time"].real() > 1e9);
  CHECK(lines[2]["kind"] == Value("b \"quoted\"\nline"));
}

TEST_CASE("a file that cannot be written harms nobody") {
  EventLog log;
  CHECK_THROWS_WITH_AS(log.write_to("/no/such/folder/log"),
                       "cannot write events to /no/such/folder/log: No such file or directory", UsageError);
  log.write_to("/dev/full");
  log.add({.kind = "a"});
  log.add({.kind = "b"});
  CHECK(log.size() == 2);
  CHECK_THROWS_AS(EventLog(0), UsageError);
}

TEST_CASE("several threads write at once") {
  EventLog log;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&log] {
      for (int j = 0; j < 100; ++j) log.add({.kind = "event"});
    });
  for (std::thread& thread : threads) thread.join();
  const std::vector<Event> all = log.events();
  REQUIRE(all.size() == 400);
  for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i - 1].time_s < all[i].time_s);
}

}  // namespace miniray
