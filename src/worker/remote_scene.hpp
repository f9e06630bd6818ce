// A worker server in a process of its own, and helpers for the tests of remote workers.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "miniray/error.hpp"
#include "miniray/remote_worker.hpp"
#include "miniray/worker_server.hpp"
#include "tests/echo.hpp"
#include "tests/wait_until.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

const std::string key(64, 'a');

[[noreturn]] inline void stubborn(Handle& handle) {
  signal(SIGTERM, SIG_IGN);
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  handle.send(Value::list({getpid(), child}));
  for (;;) sched_yield();
}

// Returns whether the process has ended. Its new parent may not have reaped it yet.
inline bool is_gone(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::ostringstream text;
  text << file.rdbuf();
  const std::size_t name_ends = text.str().rfind(')');
  return name_ends == std::string::npos || text.str().compare(name_ends + 2, 1, "Z") == 0;
}

inline void wait_until_gone(std::int64_t pid) {
  wait_until("the end of process " + std::to_string(pid), [&] { return is_gone(pid); });
}

// A worker server in a process of its own, which ends with the scope. It sends its log as messages.
struct Server {
  Worker process;
  std::string host;
  int port = 0;

  explicit Server(const WorkFunction& work, WorkerServerOptions options = {}, const std::string& at = "127.0.0.1")
      : process([=](Handle& handle) mutable {
          if (options.key.empty()) options.key = key;
          options.on_log = [&handle](const std::string& line) { handle.send(to_utf8(line.substr(0, 1000))); };
          WorkerServer server(at, 0, work, options);
          server.on_ready(handle.fileno(), [&server] { server.stop(); });
          handle.send(server.port());
          server.serve_forever();
        }),
        host(at),
        port(static_cast<int>(process.recv({.timeout_s = 30}).integer())) {}

  [[nodiscard]] RemoteWorker connect(RemoteOptions options = {}) const {
    if (options.key.empty()) options.key = key;
    return {host, port, options};
  }
  // The remote workers end with the server.
  void end() { process.close(); }
};

inline std::filesystem::path temporary_folder() {
  std::string made = std::filesystem::temp_directory_path() / "miniray-test-XXXXXX";
  REQUIRE(mkdtemp(made.data()) != nullptr);
  return made;
}

template <class Exception, class Call>
Exception caught(Call call) {
  try {
    (void)call();
  } catch (const Exception& error) {
    return error;
  }
  throw std::logic_error("it did not throw");
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace
}  // namespace miniray
