// Functions for tasks, which tests/main.cpp registers so that a cluster's nodes have them too; and a folder of files by
// which a test and its tasks, in whatever process, wait for each other.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "miniray/registry.hpp"
#include "tests/wait_until.hpp"

namespace miniray {

inline void append_line(const std::string& path, const std::string& line) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const std::string text = line + "\n";
  if (write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) throw std::runtime_error(path);
  close(file);
}

inline void wait_for_file(const std::string& path) {
  wait_until(path, [&] { return std::filesystem::exists(path); });
}

class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "miniray-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder");
    path_ = name;
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] bool has(const std::string& name) const { return std::filesystem::exists(path_ / name); }
  void touch(const std::string& name) const { append_line(file(name), ""); }
  void wait_for(const std::string& name) const { wait_for_file(file(name)); }
  [[nodiscard]] std::vector<std::string> lines(const std::string& name) const {
    std::ifstream stream(path_ / name);
    std::vector<std::string> all;
    for (std::string line; std::getline(stream, line);) all.push_back(line);
    return all;
  }

 private:
  std::filesystem::path path_;
};

inline void register_task_functions(Registry& functions) {
  functions.add("test_square", [](double x) { return x * x; })
      .add("test_echo", [](const Value& value) { return value; })
      .add("test_pid", [] { return getpid(); })
      .add("test_environment", [](const std::string& name) { return getenv(name.c_str()) ? getenv(name.c_str()) : ""; })
      .add("test_raise", [](const std::string& text) { throw std::out_of_range(text); })
      .add("test_raise_at", [](int item) { return item < 10 ? item : throw std::out_of_range(std::to_string(item)); })
      .add("test_allocate",
           [](std::int64_t bytes) {
             const std::string taken(static_cast<std::size_t>(bytes), 'x');
             return static_cast<std::int64_t>(taken.size());
           })
      .add("test_die", [] { kill(getpid(), SIGKILL); })
      .add("test_die_at",
           [](int item) {
             if (item == 7) kill(getpid(), SIGKILL);
             return item;
           })
      // Dies the first `times` times, and then says how often it was begun.
      .add("test_die_first",
           [](const std::string& file, std::size_t times) {
             append_line(file, "begun");
             std::size_t begun = 0;
             std::ifstream stream(file);
             for (std::string line; std::getline(stream, line);) ++begun;
             if (begun <= times) kill(getpid(), SIGKILL);
             return begun;
           })
      // When it may: dies, unless it has done so before.
      .add("test_die_after",
           [](const std::string& go, const std::string& died) {
             wait_for_file(go);
             if (std::filesystem::exists(died)) return;
             close(open(died.c_str(), O_WRONLY | O_CREAT, 0600));
             kill(getpid(), SIGKILL);
           })
      .add("test_die_unless",
           [](const std::string& died) {
             if (std::filesystem::exists(died)) return true;
             append_line(died, "");
             kill(getpid(), SIGKILL);
             return false;
           })
      .add("test_wait_for", wait_for_file)
      .add("test_append", append_line)
      // Says that it has begun, and waits until it may end.
      .add("test_wait", [](const std::string& begun, const std::string& go) {
        append_line(begun, "");
        wait_for_file(go);
      });
}

}  // namespace miniray
