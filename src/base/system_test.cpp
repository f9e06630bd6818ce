#include "base/system.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/clock.hpp"
#include "base/network.hpp"
#include "miniray/error.hpp"
#include "tests/child_end.hpp"
#include "tests/sanitized.hpp"

namespace miniray {
namespace {

using Outcome = system::Transfer::Outcome;

system::Transfer send_text(int socket, std::string_view text, std::span<const int> descriptors = {}) {
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  return system::send(socket, std::span(&piece, 1), descriptors);
}

std::string text_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// As long as this object lives, a signal interrupts this process again and again. Its handler does nothing.
class Interrupting {
 public:
  Interrupting() {
    struct sigaction action{};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, &before_);
    const itimerval again{{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &again, nullptr);
  }
  Interrupting(const Interrupting&) = delete;
  Interrupting& operator=(const Interrupting&) = delete;
  ~Interrupting() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  struct sigaction before_{};
};

}  // namespace

// Sockets and pipes.

TEST_CASE("bytes move through a socket pair; would_block and closed are values") {
  auto [here, there] = system::socket_pair();
  CHECK(system::is_unix_socket(here.get()));
  CHECK((fcntl(here.get(), F_GETFD) & FD_CLOEXEC) != 0);
  std::array<std::byte, 16> room{};
  CHECK(system::receive(there.get(), room, system::Block::no, nullptr).outcome == Outcome::would_block);
  CHECK(send_text(here.get(), "hello").bytes == 5);
  const system::Transfer transfer = system::receive(there.get(), room, system::Block::yes, nullptr);
  CHECK(transfer.outcome == Outcome::moved);
  CHECK(text_in(std::span(room).first(transfer.bytes)) == "hello");
  system::shut_down_writing(here.get());
  CHECK(system::receive(there.get(), room, system::Block::yes, nullptr).outcome == Outcome::closed);
  CHECK(send_text(there.get(), "it still takes this").outcome == Outcome::moved);
  here.reset();
  const system::Transfer refused = send_text(there.get(), "nobody is left");
  CHECK(refused.outcome == Outcome::closed);
  CHECK(refused.error_number == EPIPE);
}

TEST_CASE("a full socket would block, and sends pieces as one sequence of bytes") {
  auto [here, there] = system::socket_pair();
  std::string first = "ab", second = "cde";
  const std::array<iovec, 2> pieces{{{first.data(), first.size()}, {second.data(), second.size()}}};
  CHECK(system::send(here.get(), pieces, {}).bytes == 5);
  std::array<std::byte, 5> room{};
  system::receive_all(there.get(), room);
  CHECK(text_in(room) == "abcde");
  const std::string much(1 << 20, 'x');
  while (send_text(here.get(), much).outcome == Outcome::moved) {
  }
  CHECK(send_text(here.get(), much).outcome == Outcome::would_block);
}

TEST_CASE("descriptors travel with the bytes, and arrive with an owner") {
  auto [here, there] = system::socket_pair();
  auto [read_end, write_end] = system::make_pipe();
  const std::array<int, 1> sent{write_end.get()};
  CHECK(send_text(here.get(), "x", sent).bytes == 1);
  std::array<std::byte, 1> room{};
  std::vector<Fd> arrived;
  CHECK(system::receive(there.get(), room, system::Block::yes, &arrived).bytes == 1);
  REQUIRE(arrived.size() == 1);
  CHECK(arrived[0].get() != write_end.get());
  CHECK((fcntl(arrived[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(system::write_some(arrived[0].get(), "y").bytes == 1);
  CHECK(system::read_some(read_end.get(), room).bytes == 1);
}

TEST_CASE("a descriptor for which the process has no room is an error with the remedy" * doctest::skip(sanitized)) {
  const ChildEnd end = end_of_child([] {
    auto [here, there] = system::socket_pair();
    const std::array<int, 1> sent{here.get()};
    if (send_text(here.get(), "x", sent).bytes != 1) return 1;
    system::set_descriptor_limit(3);
    std::array<std::byte, 1> room{};
    std::vector<Fd> arrived;
    try {
      (void)system::receive(there.get(), room, system::Block::yes, &arrived);
      return 2;
    } catch (const SystemError& error) {
      return std::string(error.what()).find("ulimit -n") != std::string::npos ? 0 : 3;
    }
  });
  CHECK(end.exit_code == 0);
}

TEST_CASE("a descriptor that is not a socket, or not open, is an error") {
  std::array<std::byte, 1> room{};
  CHECK_THROWS_AS((void)system::receive(-1, room, system::Block::no, nullptr), SystemError);
  CHECK_THROWS_AS((void)send_text(-1, "x"), SystemError);
  CHECK_THROWS_AS((void)system::read_some(-1, room), SystemError);
  CHECK_THROWS_AS((void)system::write_some(-1, "x"), SystemError);
  CHECK_THROWS_AS((void)system::duplicate(-1), SystemError);
  CHECK_THROWS_AS(system::replace_descriptor(-1, 100), SystemError);
  const Fd null = system::open_null();
  CHECK_THROWS_AS((void)system::is_unix_socket(null.get()), SystemError);
  CHECK_THROWS_AS(system::set_receive_timeout_ms(null.get(), 1), SystemError);
  const auto [here, there] = system::socket_pair();
  CHECK_THROWS_AS(system::set_no_delay(here.get()), SystemError);
}

TEST_CASE("an empty room to receive into, or nothing to send, is our bug") {
  for (const bool sends : {true, false}) {
    CAPTURE(sends);
    const ChildEnd end = end_of_child([sends] {
      auto [here, there] = system::socket_pair();
      if (sends)
        (void)system::send(here.get(), {}, {});
      else
        (void)system::receive(there.get(), {}, system::Block::no, nullptr);
      return 0;
    });
    CHECK(end.signal == SIGABRT);
  }
}

TEST_CASE("send_all and receive_all move all bytes, and throw if the peer has closed") {
  auto [here, there] = system::socket_pair();
  const std::string much(1 << 20, 'm');
  std::thread writer([&much, socket = here.get()] { system::send_all(socket, much); });
  std::vector<std::byte> room(much.size());
  system::receive_all(there.get(), room);
  writer.join();
  CHECK(text_in(room) == much);
  here.reset();
  CHECK_THROWS_AS(system::receive_all(there.get(), std::span(room).first(1)), EndOfStream);
  CHECK_THROWS_AS(system::send_all(there.get(), "x"), EndOfStream);
}

TEST_CASE("shutting a socket down wakes the waits at both ends") {
  auto [here, there] = system::socket_pair();
  system::shut_down(here.get());
  std::array<std::byte, 1> room{};
  CHECK(system::receive(here.get(), room, system::Block::yes, nullptr).outcome == Outcome::closed);
  CHECK(system::receive(there.get(), room, system::Block::yes, nullptr).outcome == Outcome::closed);
}

TEST_CASE("a blocking receive returns after the time-out that was set") {
  const auto [here, there] = system::socket_pair();
  system::set_receive_timeout_ms(here.get(), 1);
  std::array<std::byte, 1> room{};
  CHECK(system::receive(here.get(), room, system::Block::yes, nullptr).outcome == Outcome::would_block);
}

TEST_CASE("a pipe has an end to read and an end to write, and closing one shows at the other") {
  auto [here, there] = system::make_pipe();
  CHECK(system::write_some(there.get(), "text").bytes == 4);
  std::array<std::byte, 16> room{};
  CHECK(system::read_some(here.get(), room).bytes == 4);
  network::set_blocking(here.get(), false);
  CHECK(system::read_some(here.get(), room).outcome == Outcome::would_block);
  there.reset();
  CHECK(system::read_some(here.get(), room).outcome == Outcome::closed);
}

TEST_CASE("a descriptor can be duplicated, and can take the place of another") {
  const auto [here, there] = system::make_pipe();
  Fd copy = system::duplicate(there.get());
  CHECK(copy.get() != there.get());
  CHECK((fcntl(copy.get(), F_GETFD) & FD_CLOEXEC) != 0);
  const Fd null = system::open_null();
  CHECK(system::write_some(null.get(), "vanishes").bytes == 8);
  system::replace_descriptor(there.get(), null.get());
  CHECK((fcntl(null.get(), F_GETFD) & FD_CLOEXEC) == 0);  // the programs that this process runs have it too
  CHECK(system::write_some(null.get(), "x").bytes == 1);
  std::array<std::byte, 16> room{};
  CHECK(system::read_some(here.get(), room).bytes == 1);
}

// Waiting.

TEST_CASE("waiting for a descriptor: ready, too late, interrupted, impossible") {
  const auto [here, there] = system::make_pipe();
  CHECK(system::poll_one(here.get(), POLLIN, 0) == 0);
  CHECK((system::poll_one(there.get(), POLLOUT, 0) & POLLOUT) != 0);
  CHECK((system::poll_one(1000, POLLIN, 0) & POLLNVAL) != 0);
  {
    const Interrupting often;
    CHECK(system::poll_one(here.get(), POLLIN, 60'000) == -1);
  }
  CHECK(system::write_some(there.get(), "x").bytes == 1);
  CHECK((system::poll_one(here.get(), POLLIN, 60'000) & POLLIN) != 0);
}

TEST_CASE("an epoll set returns the tags of ready descriptors until they are removed") {
  const auto [here, there] = system::make_pipe();
  system::Epoll epoll;
  int first = 0, second = 0;
  std::vector<void*> ready;
  epoll.add(here.get(), &first);
  CHECK(epoll.wait(ready, 0));
  CHECK(ready.empty());
  CHECK(system::write_some(there.get(), "x").bytes == 1);
  CHECK(epoll.wait(ready, 60'000));
  CHECK(ready == std::vector<void*>{&first});
  epoll.add(here.get(), &second);  // the second add() replaces the tag
  CHECK(epoll.wait(ready, 60'000));
  CHECK(ready == std::vector<void*>{&first, &second});  // appended
  epoll.remove(here.get());
  ready.clear();
  CHECK(epoll.wait(ready, 0));
  CHECK(ready.empty());
  const Interrupting often;
  CHECK_FALSE(epoll.wait(ready, 60'000));
  CHECK_THROWS_AS(epoll.add(-1, nullptr), SystemError);
}

TEST_CASE("a sleep takes its time, and a signal ends it early") {
  const std::int64_t begun = now_ns();
  system::sleep_ns(2'000'000);
  CHECK(now_ns() - begun >= 2'000'000);
  const Interrupting often;
  system::sleep_ns(60'000'000'000);  // longer than the test's time-out
}

// Memory.

TEST_CASE("sealed memory never changes its size, and its content is shared") {
  const Fd memory = system::sealed_memory("miniray-test", 8192);
  REQUIRE(memory.valid());
  CHECK(system::sealed_memory_bytes(memory.get()) == 8192);
  CHECK(ftruncate(memory.get(), 4096) != 0);
  CHECK(ftruncate(memory.get(), 16384) != 0);
  const system::Mapping one(memory.get(), 8192), other(memory.get(), 8192);
  one.bytes()[8191] = std::byte{7};
  CHECK(other.bytes()[8191] == std::byte{7});
}

TEST_CASE("the size of memory that is not sealed, and of other files, is 0") {
  const Fd file = system::memory_file("miniray-test");
  REQUIRE(ftruncate(file.get(), 4096) == 0);
  CHECK(system::sealed_memory_bytes(file.get()) == 0);
  const Fd null = system::open_null();
  CHECK(system::sealed_memory_bytes(null.get()) == 0);
  CHECK(system::sealed_memory_bytes(-1) == 0);
}

TEST_CASE("sealed memory without room is an invalid Fd; a mapping of nothing is an error") {
  CHECK(end_of_child([] {
          signal(SIGXFSZ, SIG_IGN);
          const rlimit small{4096, 4096};
          setrlimit(RLIMIT_FSIZE, &small);
          if (!system::sealed_memory("miniray-test", 4096).valid()) return 1;
          return system::sealed_memory("miniray-test", 8192).valid() ? 2 : 0;
        }).exit_code == 0);
  CHECK_THROWS_AS(system::Mapping(-1, 4096), SystemError);
}

TEST_CASE("a private copy begins with the memory's content, and writes to it stay private") {
  const Fd memory = system::sealed_memory("miniray-test", 4096);
  const std::array<std::byte, 2> content{std::byte{1}, std::byte{2}};
  system::write_memory(memory.get(), content);
  const system::Mapping shared(memory.get(), 4096), copy(memory.get(), 4096, system::Mapping::Kind::private_copy);
  CHECK(copy.bytes()[1] == std::byte{2});
  copy.bytes()[1] = std::byte{3};
  CHECK(shared.bytes()[1] == std::byte{2});
}

TEST_CASE("a shared mapping can be made private at the same address") {
  const Fd memory = system::sealed_memory("miniray-test", 4096);
  const system::Mapping shared(memory.get(), 4096);
  system::Mapping own(memory.get(), 4096);
  const std::byte* const address = own.bytes().data();
  shared.bytes()[0] = std::byte{1};
  REQUIRE(own.make_private());
  CHECK(own.bytes().data() == address);
  CHECK(own.bytes()[0] == std::byte{1});
  shared.bytes()[0] = std::byte{2};
  own.bytes()[1] = std::byte{3};
  CHECK(own.bytes()[0] == std::byte{1});
  CHECK(shared.bytes()[1] == std::byte{0});
}

TEST_CASE("more than sealed memory can hold cannot be written to it") {
  const Fd memory = system::sealed_memory("miniray-test", 16);
  const std::vector<std::byte> larger(32);
  CHECK_THROWS_WITH_AS(system::write_memory(memory.get(), larger), doctest::Contains("fill shared memory"),
                       SystemError);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK_THROWS_AS(system::write_memory(null.get(), larger), SystemError);
}

TEST_CASE("a file in memory is read from its start up to a limit, and can be emptied") {
  const Fd file = system::memory_file("miniray-test");
  CHECK(system::memory_file_bytes(file.get()) == 0);
  CHECK(system::write_some(file.get(), "written by a child").bytes == 18);
  CHECK(system::memory_file_bytes(file.get()) == 18);
  CHECK(system::read_memory_file(file.get(), 7) == "written");
  CHECK(system::read_memory_file(file.get(), 1000) == "written by a child");
  system::clear_memory_file(file.get());
  CHECK(system::memory_file_bytes(file.get()) == 0);
  CHECK(system::write_some(file.get(), "again").bytes == 5);
  CHECK(system::read_memory_file(file.get(), 1000) == "again");
  CHECK(system::memory_file_bytes(-1) == 0);
  CHECK(system::read_memory_file(-1, 10).empty());
  CHECK_THROWS_AS(system::clear_memory_file(-1), SystemError);
}

// The machine and the process.

TEST_CASE("a thread is pinned to the wanted CPUs that it may use, and stays unpinned if there are none") {
  const std::vector<int> usable = system::usable_cpu_list();
  REQUIRE_FALSE(usable.empty());
  CHECK(system::usable_cpus() == static_cast<int>(usable.size()));
  std::thread([&] {  // a thread of its own, so that the other tests keep their CPUs
    CHECK(system::pin_to_cpus({1000, 2000}).empty());
    CHECK(system::pin_to_cpus({-1}).empty());
    CHECK(system::usable_cpu_list() == usable);
    CHECK(system::pin_to_cpus({usable.back(), 1000}) == std::vector<int>{usable.back()});
    CHECK(system::usable_cpus() == 1);
  })
      .join();
  CHECK(system::usable_cpu_list() == usable);
}

TEST_CASE("threads are counted" * doctest::skip(under_tsan)) {
  CHECK(end_of_child([] {
          if (system::thread_count() != 1) return 1;
          const auto [told, tells] = system::make_pipe();
          std::thread other([&told] {
            std::array<std::byte, 1> room{};
            (void)system::read_some(told.get(), room);
          });
          const int count = system::thread_count();
          (void)system::write_some(tells.get(), "x");
          other.join();
          return count == 2 ? 0 : 2;
        }).exit_code == 0);
}

TEST_CASE("the time of day agrees with the system's clock") {
  const std::int64_t before = time(nullptr);
  const std::int64_t now_s = system::time_of_day_ns() / 1'000'000'000;
  CHECK(now_s >= before - 1);
  CHECK(now_s <= time(nullptr) + 1);
}

TEST_CASE("files, folders and terminals that do not exist") {
  CHECK(system::read_small_file("/no/such/file").empty());
  CHECK(system::read_small_file("/proc/self/comm").ends_with('\n'));
  const Fd null = system::open_null();
  CHECK(system::terminal_columns(null.get()) == 0);
  CHECK(system::room_at("/no/such/folder").total_bytes == 0);
  CHECK(system::room_at("/").total_bytes > 0);
  CHECK(system::room_at("/").total_bytes >= system::room_at("/").free_bytes);
  CHECK_THROWS_WITH_AS(system::change_folder("/no/such/folder", "workdir"),
                       "cannot change to the folder /no/such/folder (workdir): No such file or directory", SystemError);
}

TEST_CASE("a private folder is for its owner alone, and must be new") {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("miniray-test-" + std::to_string(getpid()));
  system::make_private_folder(path.c_str());
  struct stat found{};
  REQUIRE(stat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777U) == 0700U);
  CHECK_THROWS_AS(system::make_private_folder(path.c_str()), SystemError);
  CHECK(end_of_child([&] {
          system::change_folder(path, "workdir");
          return std::filesystem::current_path() == std::filesystem::canonical(path) ? 0 : 1;
        }).exit_code == 0);
  std::filesystem::remove(path);
}

TEST_CASE("the limit on descriptors is raised to its maximum, and restored") {
  CHECK(end_of_child([] {
          const std::uint64_t most = [] {
            rlimit limit{};
            getrlimit(RLIMIT_NOFILE, &limit);
            return limit.rlim_max;
          }();
          system::set_descriptor_limit(64);
          if (system::descriptor_limit() != 64) return 1;
          if (system::raise_descriptor_limit() != 64) return 2;
          return system::descriptor_limit() == most ? 0 : 3;
        }).exit_code == 0);
  CHECK(system::locked_memory_limit() > 0);
}

TEST_CASE("a variable of the environment is set, replaced and removed; one without a name is refused") {
  system::set_environment("MINIRAY_TEST", "one");
  system::set_environment("MINIRAY_TEST", "two");
  CHECK(std::string(std::getenv("MINIRAY_TEST")) == "two");
  system::remove_from_environment("MINIRAY_TEST");
  CHECK(std::getenv("MINIRAY_TEST") == nullptr);
  CHECK_THROWS_AS(system::set_environment("", "value"), SystemError);
  CHECK_THROWS_AS(system::set_environment("A=B", "value"), SystemError);
  CHECK_THROWS_AS(system::remove_from_environment(""), SystemError);
}

}  // namespace miniray
