#include "launch/launch_command.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "channel/authentication.hpp"

namespace miniray {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a quoted word reaches the command unchanged") {
  CHECK(quote_for_shell("plain") == "'plain'");
  CHECK(quote_for_shell("it's $HOME; `x`") == "'it'\\''s $HOME; `x`'");
  CHECK(quote_for_shell("") == "''");
}

TEST_CASE("a program in the cache runs only if it is this user's and has the right content") {
  namespace fs = std::filesystem;
  std::string pattern = (fs::temp_directory_path() / "miniray-test-XXXXXX").string();
  REQUIRE(mkdtemp(pattern.data()) != nullptr);
  const fs::path home = pattern, program = home / "miniray/programs" / content_hash("exit 7\n");
  const std::string command = with_shipped_program("sh \"$program\"", content_hash("exit 7\n"), 7);
  const auto run = [&](const std::string& input) {
    const std::string line = "printf '" + input + "' | XDG_CACHE_HOME='" + home.string() + "' sh -c " +
                             quote_for_shell(command) + " > '" + (home / "out").string() + "' 2>&1";
    const int status = std::system(line.c_str());  // NOLINT(concurrency-mt-unsafe,cert-env33-c): a test
    return WEXITSTATUS(status);
  };
  const auto asked = [&] {
    std::ostringstream said;
    said << std::ifstream(home / "out").rdbuf();
    return contains(said.str(), send_program_line);
  };
  CHECK(run("exit 7\\n") == 7);
  CHECK(asked());
  CHECK(run("") == 7);
  CHECK_FALSE(asked());
  std::ofstream(program) << "exit 6\n";
  CHECK(run("exit 7\\n") == 7);
  CHECK(asked());
  if (geteuid() == 0) {
    for (const fs::path& each : {program, program.parent_path(), home / "miniray"}) {
      CHECK(lchown(each.c_str(), 12345, 12345) == 0);
      CHECK(run("exit 7\\n") == (each == program ? 7 : 1));
      CHECK(lchown(each.c_str(), geteuid(), getegid()) == 0);
    }
  }
  fs::remove(program);
  std::ofstream(home / "planted") << "exit 7\n";
  fs::create_symlink(home / "planted", program);
  CHECK(run("exit 7\\n") == 7);
  CHECK(asked());
  CHECK_FALSE(fs::is_symlink(program));
  fs::remove_all(home);
}

TEST_CASE("a node is reached through the user's own ssh, and this machine without ssh") {
  const std::vector<std::string> local = launch_command({.host = "localhost"}, "run", {}, 20'000);
  CHECK(local == std::vector<std::string>{"/bin/sh", "-c", "run"});
  const std::vector<std::string> remote =
      launch_command({.host = "me@node", .ssh_key = "/key"}, "run", {"/here", "/there"}, 20'000);
  CHECK(remote.front() == "ssh");
  CHECK(remote.back() == "exec /bin/sh -c 'run'");
  CHECK(remote[remote.size() - 2] == "me@node");
  CHECK(remote[remote.size() - 3] == "--");
  CHECK(std::ranges::find(remote, "BatchMode=yes") != remote.end());
  CHECK(std::ranges::find(remote, "ServerAliveInterval=5") != remote.end());
  CHECK(std::ranges::find(remote, "/here:/there") != remote.end());
  CHECK(std::ranges::find(remote, "/key") != remote.end());
}

TEST_CASE("a failure is explained by its cause and its cure") {
  struct Case {
    int exit_code;
    const char *said, *cause, *cure;
  };
  const NodeConfig node{.host = "node9", .python_bin = "python9"};
  for (const Case& each : {
           Case{255, "ssh: Could not resolve hostname node9: Name or service not known", "the host is unknown",
                "ssh node9"},
           Case{255, "ssh: connect to host node9 port 22: Connection refused", "connection refused", "sshd"},
           Case{255, "ssh: connect to host node9 port 22: Connection timed out", "does not answer", "ping node9"},
           Case{255, "ssh: connect to host node9 port 22: No route to host", "does not answer", "ping node9"},
           Case{255, "root@node9: Permission denied (publickey).", "key rejected", "ssh-copy-id node9"},
           Case{255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "host key has changed",
                "ssh-keygen -R node9"},
           Case{255, "Host key verification failed.", "does not know its host key", "accept the key"},
           Case{127, "/bin/sh: 1: exec: python9: not found", "has no program python9", "python_bin"},
           Case{1, "No module named 'miniray'", "Python has no MiniRay", "python9 -m pip install miniray=="},
           Case{3, "Segmentation fault", "exit code 3", "Segmentation fault"},
       }) {
    CAPTURE(each.said);
    const std::string text = explain_failure(node, each.exit_code, each.said, Runs::python);
    CHECK(contains(text, each.cause));
    CHECK(contains(text, each.cure));
    CHECK(contains(text, each.said));
  }
}

TEST_CASE("a program that ends before it calls miniray::init is told so, and not that there is no memory") {
  const NodeConfig here{.host = "localhost"}, there{.host = "node9"};
  for (const int exit_code : {0, 2, -SIGSEGV, -SIGABRT}) {
    CAPTURE(exit_code);
    const std::string text = explain_failure(here, exit_code, "usage: program FILE", Runs::own_program);
    CHECK(contains(text, "before it called miniray::init. On a node the program has to reach miniray::init"));
    CHECK(contains(text, "usage: program FILE"));
    CHECK_FALSE(contains(text, "memory"));
  }
  CHECK(contains(explain_failure(here, -SIGSEGV, "", Runs::own_program), "signal 11 (Segmentation fault)"));
  CHECK(contains(explain_failure(here, -SIGKILL, "", Runs::own_program), "out of memory"));
  CHECK(contains(explain_failure(there, 255, "", Runs::own_program), "before it called miniray::init"));
  CHECK(contains(explain_failure(there, 2, "", Runs::own_program), "before it called miniray::init"));
  const ExitStatus exited{.exit_code = 2}, killed{.signal = SIGKILL};
  CHECK(contains(explain_attendant_end(exited, Runs::own_program), "exit code 2 before it called miniray::init"));
  CHECK(contains(explain_attendant_end(killed, Runs::own_program), "out of memory"));
  CHECK(contains(explain_attendant_end(exited, Runs::python), "exit code 2 before it was ready. What it printed"));
  CHECK(contains(explain_silence(here, Runs::own_program), "has not called miniray::init"));
  CHECK(explain_silence(here, Runs::python).empty());
}

}  // namespace miniray
