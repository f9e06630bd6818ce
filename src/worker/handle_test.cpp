#include "miniray/handle.hpp"

#include <doctest/doctest.h>

#include "miniray/error.hpp"
#include "tests/wait_until.hpp"

namespace miniray {

TEST_CASE("a handle answers as its channel does") {
  auto [here, there] = Channel::pair({.inbox_bytes_max = 1000});
  Handle handle(std::move(there));
  CHECK_FALSE(handle.ready());
  CHECK_FALSE(handle.inbox_is_full());
  CHECK(handle.shares_memory());
  here.send("first");
  wait_until("a message", [&] { return handle.ready(); });
  for (int i = 0; i < 10; ++i) here.send(std::string(500, 'x'));
  wait_until("a full inbox", [&] {
    handle.pump();
    return handle.inbox_is_full();
  });
  CHECK(handle.recv() == "first");
  here.close();
  for (int i = 0; i < 10; ++i) CHECK(handle.recv().string().size() == 500);
  CHECK_THROWS_AS((void)handle.recv(), EndOfStream);
  CHECK(handle.ended());
  CHECK_FALSE(handle.cut());  // it ended in good order
}

TEST_CASE("a handle makes arrays of a type that is known when the program runs") {
  auto [here, there] = Channel::pair();
  const Handle handle(std::move(there));
  const Array made = handle.make_array(DType::float32, {2, 3});
  CHECK(made.dtype() == DType::float32);
  CHECK(made.shape() == Shape{2, 3});

  ChannelOptions alone;
  alone.shared_memory = false;
  auto [one, other] = Channel::pair(alone);
  CHECK_FALSE(Handle(std::move(other)).shares_memory());
}

}  // namespace miniray
