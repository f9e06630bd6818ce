// Arrays that are sent without a copy: what the sender, the receivers and forks see.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <vector>

#include "miniray/channel.hpp"
#include "miniray/error.hpp"
#include "miniray/worker.hpp"
#include "tests/child_end.hpp"
#include "tests/tcp_ends.hpp"
#include "wire/in_place_memory.hpp"

namespace miniray {
namespace {

const ChannelOptions in_place_checked{.check_invariants = true};
constexpr std::size_t many = 1'000'000;

Array counted(std::size_t count = many) {
  Array array = make_array<float>({count});
  const std::span<float> numbers = array.mutable_elements<float>();
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  return array;
}

bool lies_in_place(const Array& array) { return array.buffer().passed != nullptr; }

// Sends a frame with one buffer in memory of this descriptor, as a peer that follows no rules.
void send_descriptor(int socket, int descriptor, std::uint64_t offset, std::uint64_t bytes) {
  std::string frame("MR\0\0\1\0\0\0\1\0\0\0\0\0\0\0", 16);
  const std::uint64_t place = (std::uint64_t{1} << 61) | offset;
  frame.append(reinterpret_cast<const char*>(&bytes), 8).append(reinterpret_cast<const char*>(&place), 8) += '\xc0';
  iovec piece{frame.data(), frame.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
  REQUIRE(sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(frame.size()));
}

}  // namespace

TEST_CASE("an array that was made in place is not copied, and cannot be written after it was sent") {
  auto [here, there] = Channel::pair(in_place_checked);
  Array array = counted();
  CHECK(lies_in_place(array));
  here.send(array);
  const Value received = there.recv();
  CHECK(lies_in_place(received.array()));
  CHECK(received.array() == array);
  CHECK_THROWS_WITH_AS((void)array.mutable_elements<float>(), doctest::Contains("that was sent"), UsageError);
  CHECK(array.elements<const float>()[7] == 7.0F);
}

TEST_CASE("what a receiver writes is seen by nobody else") {
  auto [here, there] = Channel::pair(in_place_checked);
  const Array array = counted();
  here.send({{"a", array}});
  here.send({{"a", array}});
  Value first = there.recv();
  const Value second = there.recv();
  Array& written = first["a"].array();
  for (float& number : written.mutable_elements<float>()) number = -1.0F;
  CHECK(lies_in_place(written));
  CHECK(second["a"].array() == array);
  CHECK(array.elements<const float>()[many - 1] == static_cast<float>(many - 1));
  CHECK(written.elements<float>()[many - 1] == -1.0F);
}

TEST_CASE("memory of in-place arrays is used again, but not while a receiver has it") {
  auto [here, there] = Channel::pair(in_place_checked);
  const std::byte* first = nullptr;
  Value received;
  {
    const Array array = counted();
    first = array.buffer().data;
    here.send(array);
    received = there.recv();
  }
  {
    Array other = make_array<float>({many});
    CHECK(other.buffer().data != first);
    for (float& number : other.mutable_elements<float>()) number = -1.0F;
    CHECK(received.array().elements<const float>()[9] == 9.0F);
  }
  received = {};
  const Array one = make_array<float>({many}), two = make_array<float>({many});
  CHECK((one.buffer().data == first || two.buffer().data == first));
  Array again = one.buffer().data == first ? one : two;
  again.mutable_elements<float>()[0] = 1.0F;  // it is not frozen any more
}

TEST_CASE("a received array is sent on without a copy, unless it was written to") {
  auto [a_here, a_there] = Channel::pair(in_place_checked);
  auto [b_here, b_there] = Channel::pair(in_place_checked);
  Value third;
  {
    a_here.send(counted());
    Value second = a_there.recv();
    CHECK(std::accumulate(second.array<const float>().begin(), second.array<const float>().end(), 0.0) > 0);
    b_here.send(second);
    third = b_there.recv();
    CHECK(lies_in_place(third.array()));
    second.mutable_array<float>()[1] = -1.0F;
    CHECK(lies_in_place(second.array()));  // it was written to in place
    b_here.send(second);
    const Value fourth = b_there.recv();
    CHECK(!lies_in_place(fourth.array()));
    CHECK(fourth.array<const float>()[1] == -1.0F);
    CHECK(fourth.array<const float>()[many - 1] == static_cast<float>(many - 1));
  }
  Array next = counted();  // must not reuse the memory, which `third` still has
  for (float& number : next.mutable_elements<float>()) number = -2.0F;
  CHECK(third.array<const float>()[1] == 1.0F);
}

TEST_CASE("a fork sees a copy of an array that was made in place, and the parent keeps the memory") {
  auto [here, there] = Channel::pair(in_place_checked);
  Array array = counted();
  here.send(counted());
  const Value received = there.recv();
  const ChildEnd end = end_of_child([&] {
    if (array.elements<float>()[5] != 5.0F) return 1;
    array.mutable_elements<float>()[5] = -5.0F;
    auto [mine, yours] = Channel::pair();
    mine.send({{"made", array}, {"received", received}});
    const Value copies = yours.recv();
    if (copies["made"].array<const float>()[5] != -5.0F) return 2;
    return copies["received"].array<const float>()[6] == 6.0F ? 0 : 3;
  });
  CHECK_MESSAGE(end.exit_code == 0, end.said);
  CHECK(array.elements<float>()[5] == 5.0F);
  here.send(array);
  CHECK(lies_in_place(there.recv().array()));
}

TEST_CASE("a message may have more in-place arrays than descriptors fit") {
  Worker echo([](Handle& handle) {
    for (;;) handle.send(handle.recv());
  });
  List all;
  for (int i = 0; i < 20; ++i) all.emplace_back(counted(100'000));
  echo.send(Value(all));
  CHECK(echo.recv() == Value(all));
}

TEST_CASE("memory that killed workers had is given back, whenever its maker drops it") {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  std::vector<Array> kept;
  const auto kill_holder = [&](bool keep) {
    Worker holder([](Handle& handle) {
      const Value held = handle.recv();
      handle.send(1);
      (void)handle.recv();
    });
    Array array = counted(100'000);
    holder.send(array);
    (void)holder.recv({.timeout_s = 60});
    if (keep) kept.push_back(array);
    array = {};  // others are dropped here, before their receiver dies
    holder.kill();
    holder.wait();
  };
  kill_holder(false);
  InPlaceMemory::drop_unused();
  const auto before = open_descriptors();
  for (int i = 0; i < 20; ++i) kill_holder(i % 2 == 0);
  kept.clear();
  CHECK(open_descriptors() == before);
}

TEST_CASE("an array that the machine has no room for is refused, and takes nothing") {
  CHECK_THROWS_WITH_AS((void)make_array<char>({std::uint64_t{1} << 45}),
                       doctest::Contains("cannot make an array of 35184372088832 bytes, because this machine has only"),
                       SystemError);
  CHECK_THROWS_AS((void)make_array<char>({~std::uint64_t{0}}), SystemError);
}

TEST_CASE("a moved-from array is empty, and can be sent, written to and assigned to") {
  auto [here, there] = Channel::pair(in_place_checked);
  for (Array array : {Array::of(std::vector<float>{1, 2, 3}), counted()}) {
    const std::size_t size = array.size();
    {
      const Array gone = std::move(array);
    }
    CHECK(array.size() == 0);  // NOLINT(bugprone-use-after-move): that is the test
    CHECK(array.shape() == Shape{0});
    CHECK(array.elements<float>().empty());
    CHECK(array.mutable_elements<float>().empty());
    CHECK(array.buffer().data == nullptr);
    here.send(array);
    CHECK(there.recv().array().size() == 0);
    Array other = counted(size);
    array = std::move(other);
    CHECK(array.elements<float>()[2] == 2.0F);
    CHECK(other.size() == 0);  // NOLINT(bugprone-use-after-move)
    (void)std::move(array).buffer();
    CHECK(array.size() == 0);  // NOLINT(bugprone-use-after-move)
  }
  ArrayElements<float> numbers(counted());
  const ArrayElements<float> taken = std::move(numbers);
  CHECK(taken[7] == 7.0F);
  CHECK(numbers.empty());  // NOLINT(bugprone-use-after-move)
}

TEST_CASE("small arrays and arrays for TCP are ordinary, and stay writable") {
  Array small = make_array<std::int32_t>({2, 3});
  CHECK(!lies_in_place(small));
  CHECK(small.size() == 6);
  auto [near, far] = Channel::pair(in_place_checked);
  near.send(small);
  small.mutable_elements<std::int32_t>()[0] = 1;  // it was copied, and is not frozen
  const auto [one, other] = tcp_ends();
  Channel here(one, in_place_checked), there(other, in_place_checked);
  CHECK(!lies_in_place(here.make_array<float>({many})));
  Array array = counted(100'000);
  here.send(array);
  CHECK(there.recv() == Value(array));
  array.mutable_elements<float>()[0] = 1.0F;
}

TEST_CASE("a send that fails leaves the array writable") {
  auto [here, there] = Channel::pair(in_place_checked);
  there.close();
  Array array = counted();
  CHECK_THROWS_AS(here.send(array), EndOfStream);
  array.mutable_elements<float>()[0] = 1.0F;
}

TEST_CASE("memory that cannot be used is refused") {
  const int open_memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(open_memory, 1 << 20) == 0);
  const int sealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(sealed, 1 << 20) == 0);
  REQUIRE(fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const auto refused = [](int descriptor, std::uint64_t offset, std::uint64_t bytes) {
    std::array<int, 2> ends{};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    Channel channel(ends[0], in_place_checked);
    send_descriptor(ends[1], descriptor, offset, bytes);
    CHECK_THROWS_WITH_AS((void)channel.recv(), doctest::Contains("memory that cannot be used"), ProtocolError);
    close(ends[1]);
  };
  refused(open_memory, 0, 1000);
  refused(sealed, 0, (1 << 20) - 4095);
  refused(sealed, 1 << 20, 1);
  refused(sealed, (std::uint64_t{1} << 60) - 1, 5000);
  refused(sealed, 0, 0);
  close(open_memory);
  close(sealed);
}

TEST_CASE("workers pass in-place arrays in both directions") {
  Worker worker([](Handle& handle) {
    for (;;) {
      Array answer = handle.make_array<float>({many});
      const Value question = handle.recv();
      const auto numbers = question.array<const float>();
      std::transform(numbers.begin(), numbers.end(), answer.mutable_elements<float>().begin(),
                     [](float x) { return 2 * x; });
      handle.send(answer);
    }
  });
  for (int i = 0; i < 3; ++i) {
    Array array = worker.make_array<float>({many});
    for (float& number : array.mutable_elements<float>()) number = static_cast<float>(i);
    worker.send(array);
    const Value answer = worker.recv();
    CHECK(lies_in_place(answer.array()));
    CHECK(answer.array<const float>()[many / 2] == static_cast<float>(2 * i));
  }
}

}  // namespace miniray
