#include "base/fd.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "base/system.hpp"
#include "tests/child_end.hpp"

namespace miniray {
namespace {

bool is_open(int number) { return fcntl(number, F_GETFD) >= 0; }

}  // namespace

TEST_CASE("a descriptor is closed with its owner, and only once") {
  int number = -1;
  {
    const Fd owner = system::open_null();
    number = owner.get();
    CHECK(owner.valid());
    CHECK(is_open(number));
  }
  CHECK_FALSE(is_open(number));
  Fd owner = system::open_null();
  number = owner.get();
  owner.reset();
  CHECK_FALSE(owner.valid());
  CHECK_FALSE(is_open(number));
  const Fd next = system::open_null();  // gets the same number
  owner.reset();
  CHECK(is_open(next.get()));
}

TEST_CASE("moving a descriptor leaves one owner, and closes the descriptor that the target had before") {
  Fd first = system::open_null(), second = system::open_null();
  const int first_number = first.get(), second_number = second.get();
  first = std::move(second);
  CHECK_FALSE(is_open(first_number));
  CHECK(first.get() == second_number);
  CHECK_FALSE(second.valid());  // NOLINT(bugprone-use-after-move): what is left of it
  Fd& same = first;
  first = std::move(same);
  CHECK(first.get() == second_number);
  CHECK(is_open(second_number));
}

TEST_CASE("a released descriptor stays open") {
  Fd owner = system::open_null();
  const int number = owner.release();
  CHECK_FALSE(owner.valid());
  CHECK(is_open(number));
  close(number);
  CHECK(owner.release() == -1);
}

TEST_CASE("a forked child has only the descriptors that were kept for it or released") {
  Fd own = system::open_null(), given = system::open_null();
  const Fd kept = system::open_null();
  const int own_number = own.get(), kept_number = kept.get(), given_number = given.release();
  const std::array<int, 1> keep{kept_number};
  {
    const KeepAcrossFork keeping(keep);
    CHECK(end_of_child([&] {
            return (is_open(own_number) ? 1 : 0) + (is_open(kept_number) ? 0 : 2) + (is_open(given_number) ? 0 : 4);
          }).exit_code == 0);
  }
  CHECK(end_of_child([&] { return is_open(kept_number) ? 1 : 0; }).exit_code == 0);
  CHECK(is_open(own_number));
  close(given_number);
}

TEST_CASE("in a child, an owner from before the fork does not close its number, which another file may have") {
  Fd own = system::open_null();
  const std::uint64_t generation = process_generation();
  CHECK(end_of_child([&] {
          if (process_generation() != generation + 1) return 1;
          const Fd others = system::open_null();
          if (others.get() != own.get()) return 2;  // the lowest free number
          own.reset();
          return is_open(others.get()) ? 0 : 3;
        }).exit_code == 0);
  CHECK(process_generation() == generation);
  CHECK(is_open(own.get()));
}

TEST_CASE("a negative number cannot have an owner: that would hide an error") {
  const ChildEnd end = end_of_child([] {
    const Fd none(-1);
    return 0;
  });
  CHECK(end.signal == SIGABRT);
  CHECK(end.said.find("number >= 0") != std::string::npos);
}

}  // namespace miniray
