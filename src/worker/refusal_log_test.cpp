#include "worker/refusal_log.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr std::int64_t second_ns = 1'000'000'000;
using Lines = std::vector<std::string>;

struct RefusalScene {
  Lines lines;
  RefusalLog log{[this](const std::string& line) { lines.push_back(line); }};
  std::int64_t now_ns = 1000 * second_ns;

  void refuse(const std::string& address, std::size_t times = 1, const std::string& why = "it has another key") {
    for (std::size_t i = 0; i < times; ++i) log.refused(address, address + ":" + std::to_string(i), why, now_ns);
  }
  Lines after(std::int64_t seconds) {
    lines.clear();
    now_ns += seconds * second_ns;
    log.tick(now_ns);
    return lines;
  }
};

}  // namespace

TEST_CASE("the first refusals of a minute are shown, and the others are counted") {
  RefusalScene scene;
  scene.refuse("10.0.0.7", 4131);
  scene.refuse("10.0.0.8", 2);
  CHECK(scene.lines.size() == limits::refusals_logged_of_address_max + 2);
  CHECK(scene.lines.front() == "refused 10.0.0.7:0: it has another key");
  CHECK(scene.lines.back() == "refused 10.0.0.8:1: it has another key");
  CHECK(scene.after(59).empty());
  scene.refuse("10.0.0.7", 1, "it sent nothing\nat all");
  CHECK(scene.after(1) ==
        Lines{"refused 4,132 connections from 10.0.0.7 in the last minute; the last: it sent nothing"});
  CHECK(scene.after(1000).empty());
  scene.refuse("10.0.0.7");  // begins a new minute
  CHECK(scene.lines == Lines{"refused 10.0.0.7:0: it has another key"});
  CHECK(scene.after(60).empty());  // all of them were shown
}

TEST_CASE("a summary may come before the minute is over") {
  RefusalScene scene;
  scene.refuse("10.0.0.7", 1'234'567);
  scene.lines.clear();
  scene.log.summarise(scene.now_ns + 12 * second_ns);
  CHECK(scene.lines ==
        Lines{"refused 1,234,567 connections from 10.0.0.7 in the last 12 s; the last: it has another key"});
}

TEST_CASE("refusals of very many addresses take little room in the log and in memory") {
  RefusalScene scene;
  for (std::size_t i = 0; i < 2 * limits::refusal_addresses_max; ++i) scene.refuse(std::to_string(i), 11);
  CHECK(scene.lines.size() == limits::refusals_logged_max);
  const Lines summary = scene.after(60);
  CHECK(summary.size() == limits::refusal_summaries_max + 1);
  CHECK(summary.front().starts_with("refused 11 connections from "));
  const std::size_t named = limits::refusal_summaries_max;
  CHECK(summary.back().starts_with("refused 21,"));
  CHECK(summary.back().ends_with(" connections from other addresses in the last minute"));
  CHECK(2 * limits::refusal_addresses_max * 11 - named * 11 == 21'780);
}

}  // namespace miniray
