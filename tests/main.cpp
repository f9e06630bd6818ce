// Runs the tests, then counts what they left: descriptors, child processes, shared memory.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "miniray/calls.hpp"
#include "miniray/cluster.hpp"
#include "miniray/hardware.hpp"
#include "miniray/nccl.hpp"
#include "tests/task_functions.hpp"
#include "wire/in_place_memory.hpp"

// A rank of a training group: {"echo": x} is answered with the rank; of {"die": rank} and {"raise": rank}, the others
// hang, or notice. It is visible from outside, so that its name is in its stack.
void test_rank(miniray::Handle& handle) {
  const miniray::NCCLConfig config = miniray::nccl_config(handle.recv());
  handle.send({{"status", "ready"}});
  for (;;) {
    const miniray::Value order = handle.recv();
    if (order.find("echo") != nullptr) handle.send(config.rank);
    if (const miniray::Value* dies = order.find("die")) {
      if (dies->integer() == config.rank) kill(getpid(), SIGKILL);
      for (;;) pause();
    }
    if (const miniray::Value* raises = order.find("raise"))
      throw std::runtime_error(raises->integer() == config.rank ? "a bug" : "Connection closed by peer");
  }
}

namespace {

// Work functions for clusters, which start this program on their nodes.
const std::map<std::string, miniray::WorkFunction> cluster_functions{
    {"test_echo",
     [](miniray::Handle& handle) {
       for (;;) handle.send(handle.recv());
     }},
    {"test_double",
     [](miniray::Handle& handle) {
       for (;;) handle.send(2 * handle.recv().integer());
     }},
    {"test_spin",
     [](miniray::Handle&) {
       for (volatile bool forever = true; forever;) {
       }
     }},
    {"miniray.serve_calls", miniray::serve_calls},
    {"test_rank", test_rank},
    {"test_rank_not_ready",
     [](miniray::Handle& handle) {
       if (handle.recv()["rank"] == miniray::Value(0)) handle.send({{"status", "ready"}});
       for (;;) pause();
     }},
    {"test_environment",
     [](miniray::Handle& handle) {
       handle.send(
           miniray::Value::list({std::getenv("MINIRAY_TEST") ? std::getenv("MINIRAY_TEST") : "",
                                 std::getenv("CUDA_VISIBLE_DEVICES") ? std::getenv("CUDA_VISIBLE_DEVICES") : ""}));
       std::printf("printed by the worker\n");
       std::fprintf(stderr, "and then it died");
       kill(getpid(), SIGKILL);
     }},
};

// What the open descriptors lead to.
std::vector<std::string> open_descriptors() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ended;
    const std::string target = std::filesystem::read_symlink(entry.path(), ended).string();
    found.push_back(target);
  }
  std::ranges::sort(found);
  return found;
}

bool has_children() { return waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:miniray") != std::string::npos ? 1 : 0;
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  miniray::register_task_functions(miniray::registry());
  miniray::init(argc, argv, cluster_functions);
  (void)miniray::discover_machine();  // what NVIDIA's driver opens once in a process, and keeps, is there before
  const std::vector<std::string> before = open_descriptors();
  doctest::Context context(argc, argv);
  const int result = context.run();
  if (context.shouldExit()) return result;
  miniray::InPlaceMemory::drop_unused();  // what is kept for the next arrays
  std::vector<std::string> left;
  std::ranges::set_difference(open_descriptors(), before, std::back_inserter(left));
  // wait_any keeps one for each thread that waited, for the next time.
  if (const auto epoll = std::ranges::find(left, "anon_inode:[eventpoll]"); epoll != left.end()) left.erase(epoll);
  for (const std::string& target : left) std::printf("the tests left a descriptor of %s\n", target.c_str());
  const bool children = has_children();
  if (children) std::printf("the tests left child processes\n");
  if (shared_mappings() > 0) std::printf("the tests left %zu shared mappings\n", shared_mappings());
  return left.empty() && !children && shared_mappings() == 0 ? result : 1;
}
