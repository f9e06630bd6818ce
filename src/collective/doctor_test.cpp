#include "miniray/doctor.hpp"

#include <doctest/doctest.h>

#include "base/network.hpp"
#include "miniray/error.hpp"

// tests/doctor_test.py has the tests that need several hosts.
namespace miniray {

TEST_CASE("a program without Python checks this machine") {
  const CheckReport report = check({{"localhost"}}, {.progress = false}, {.ports = {}, .base_ports = false});
  CHECK_MESSAGE(report.healthy(), report.text());
  REQUIRE(report.nodes.size() == 1);
  CHECK(report.nodes[0]["node"] == Value("localhost"));
  CHECK(report.nodes[0].find("language") == nullptr);
  CHECK(report.value()["healthy"] == Value(true));
}

TEST_CASE("a port that is taken is a problem, and its process is named") {
  const Fd taken = network::listen(network::resolve("0.0.0.0", 0).front());
  const int port = network::local_port(taken.get());
  const CheckReport report = check({{"localhost"}}, {.progress = false}, {.ports = {port}, .base_ports = false});
  CHECK(!report.healthy());
  REQUIRE(report.findings.size() == 1);
  const Finding& finding = report.findings[0];
  CHECK(finding.check == "port");
  CHECK(finding.what.starts_with("the port " + std::to_string(port) + " is taken by process "));
  CHECK(finding.cure.starts_with("End that process, or choose another master_port"));
  CHECK(report.text().find("problem (port), localhost: the port ") != std::string::npos);
}

TEST_CASE("a report of nodes that lie has no control characters for the terminal") {
  CheckReport report;
  report.findings.push_back({.severity = Finding::Severity::warning,
                             .node = "node",
                             .check = "name",
                             .what = "\x1b]0;title\x07",
                             .cure = "\x1b[2J"});
  CHECK(report.text().find('\x1b') == std::string::npos);
  CHECK(report.text().find("\\x1b]0;title\\x07\n  -> \\x1b[2J\n") != std::string::npos);
}

TEST_CASE("arguments that are not valid are refused") {
  CHECK_THROWS_AS((void)check(std::vector<NodeConfig>{}), UsageError);
  CHECK_THROWS_AS((void)check({{"localhost"}}, {}, {.ports = {0}}), UsageError);
  CHECK_THROWS_AS((void)check({{"localhost"}}, {}, {.ports = std::vector<int>(65, 29500)}), UsageError);
  CHECK_THROWS_AS((void)check({{.host = "localhost", .num_workers = 0}}), UsageError);
}

}  // namespace miniray
