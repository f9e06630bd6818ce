#include "base/futex.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <new>

#include "base/process.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

constexpr int too_long_ms = 600'000;  // a test that takes this long has failed

// A word that this process and its children share.
class SharedWord {
 public:
  SharedWord()
      : memory_(mmap(nullptr, sizeof(std::atomic<std::uint32_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                     -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    word_ = new (memory_) std::atomic<std::uint32_t>(0);
  }
  SharedWord(const SharedWord&) = delete;
  SharedWord& operator=(const SharedWord&) = delete;
  ~SharedWord() { munmap(memory_, sizeof(std::atomic<std::uint32_t>)); }
  std::atomic<std::uint32_t>& operator*() const { return *word_; }

 private:
  void* memory_;
  std::atomic<std::uint32_t>* word_;
};

}  // namespace

TEST_CASE("a wait for a word that has another value already returns at once") {
  std::atomic<std::uint32_t> word = 1;
  system::futex_wait(word, 0, too_long_ms);
  CHECK(word == 1);
}

TEST_CASE("a wait ends with its time-out, though the word has not changed") {
  std::atomic<std::uint32_t> word = 0;
  system::futex_wait(word, 0, 1);
  CHECK(word == 0);
}

TEST_CASE("all processes that sleep on a word are woken") {
  const SharedWord shared;
  std::array<ChildProcess, 2> children;
  for (ChildProcess& child : children) {
    child = ChildProcess(fork());
    if (child.pid() == 0) {
      alarm(120);  // if nobody wakes it
      while (*shared == 0) system::futex_wait(*shared, 0, too_long_ms);
      _exit(0);
    }
  }
  for (const ChildProcess& child : children) wait_until_blocked(child.pid(), "futex");
  *shared = 1;
  system::futex_wake_all(*shared);
  for (ChildProcess& child : children) {
    wait_until("the end of a process that was woken", [&] { return !child.running(); });
    CHECK(child.reap_alone().exit_code == 0);
  }
}

}  // namespace miniray
