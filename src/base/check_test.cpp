#include "base/check.hpp"

#include <doctest/doctest.h>

#include <string>

#include "base/crash.hpp"
#include "base/system.hpp"
#include "miniray/version.hpp"
#include "tests/child_end.hpp"

namespace miniray {

TEST_CASE("a check that holds does nothing, and does not evaluate its values") {
  int looks = 0;
  const auto look = [&] { return ++looks; };
  MINIRAY_CHECK(1 + 1 == 2, look());
  CHECK(looks == 0);
}

TEST_CASE("a failed check prints its condition, place, values and the version, and aborts") {
  const ChildEnd end = end_of_child([] {
    const std::size_t size = 7;
    const int written = -3;
    const std::string peer = "worker 12";
    MINIRAY_CHECK(size == 8 && written > 0, size, written, peer, 0.5, true);
    return 0;
  });
  CHECK(end.signal == SIGABRT);
  CHECK(end.said.find("a bug in MiniRay " + std::string(version)) != std::string::npos);
  CHECK(end.said.find("src/base/check_test.cpp:") != std::string::npos);
  CHECK(end.said.find("this must hold: size == 8 && written > 0") != std::string::npos);
  CHECK(end.said.find("(size, written, peer, 0.5, true) = (7, -3, worker 12, 0.5, true)") != std::string::npos);
  CHECK(end.said.find("Please report") != std::string::npos);
  CHECK(end.said.find("C++ stack:\n") != std::string::npos);
}

TEST_CASE("a path in a failed check begins in the source folder, wherever that is") {
  const ChildEnd end = end_of_child([] {
    MINIRAY_CHECK(false);
    return 0;
  });
  CHECK(end.said.find(" src/base/check_test.cpp:") != std::string::npos);
  CHECK(end.said.find("this must hold: false.") != std::string::npos);
}

TEST_CASE("a value that is longer than the report is cut off, and the report still ends as it should") {
  const ChildEnd end = end_of_child([] {
    const std::string text(100'000, 'x');
    MINIRAY_CHECK(text.empty(), text);
    return 0;
  });
  CHECK(end.signal == SIGABRT);
  CHECK(end.said.find("xxxx") != std::string::npos);
  CHECK(end.said.find("Please report") != std::string::npos);
}

TEST_CASE("a failed check also goes to the file that has the stacks of crashes") {
  const Fd file = system::memory_file("miniray-test");
  const std::array<int, 1> keep{file.get()};
  const KeepAcrossFork kept(keep);
  const ChildEnd end = end_of_child([&] {
    write_crash_stacks_to(keep[0]);
    MINIRAY_CHECK(keep.empty(), keep.size());
    return 0;
  });
  CHECK(end.signal == SIGABRT);
  CHECK(end.said.find("this must hold: keep.empty()") != std::string::npos);
  const std::string written = system::read_memory_file(file.get(), 65536);
  CHECK(written.find("this must hold: keep.empty()") < written.find("C++ stack at SIGABRT"));
}

}  // namespace miniray
