// Sends any bytes as a call: the answer must be one reply with the call's number, whatever the call asks for. Then
// reads the same bytes as a reply, and as the values of a map of two items: they must be read or refused.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "calls/call_failures.hpp"
#include "calls/call_format.hpp"
#include "calls/registry_callee.hpp"
#include "miniray/error.hpp"

namespace {

using namespace miniray;

struct Counter {
  int count;
  int add(int by) {
    if (by < 0 || by > 100) throw UsageError("too much");
    return count = (count + by) % 1000;
  }
};

const Registry& functions() {
  static const Registry all = [] {
    Registry made;
    made.add("e", [](const Value& value) { return value; })
        .add("n", [](double x, std::uint8_t y, std::optional<float> z) { return x + y + z.value_or(0); })
        .add("l", [](const std::vector<int>& list,
                     const std::map<std::string, bool>& map) { return list.size() + map.size(); })
        .add("t", [](const std::tuple<std::string, Bytes>& pair) { return pair; })
        .add("a", [](std::span<const double> numbers) { return numbers.empty() ? 0.0 : numbers[0]; })
        .add("x", [] { return std::string("\xff"); });
    made.add_class<Counter, int>("C").method("add", &Counter::add);
    return made;
  }();
  return all;
}

Message message_of(const std::uint8_t* data, std::size_t size) {
  Message message;
  message.codec = static_cast<Codec>(data[0] & 1U);
  // Two bits for each of three buffers: absent, empty, 8 bytes, 24 bytes.
  for (unsigned i = 1; i < 4; ++i) {
    constexpr std::size_t sizes[] = {0, 0, 8, 24};
    const unsigned which = (data[0] >> (2 * i)) & 3U;
    if (which == 0) continue;
    Buffer& buffer = message.buffers.emplace_back(Buffer::allocate(sizes[which]));
    for (std::byte& byte : buffer.bytes()) byte = static_cast<std::byte>(i);
  }
  message.head = {data[1] & 1, data[1] & 2, static_cast<std::uint8_t>(data[1] >> 2)};
  message.body.assign(reinterpret_cast<const char*>(data + 2), size - 2);
  return message;
}

void as_reply(const Message& message) {
  try {
    CallReply reply = parse_reply(message);
    constexpr std::size_t items = 2;
    if (failure_in(reply, "f", "worker 1") || wrong_values(reply, items, "f", "worker 1")) return;
    if (reply.value.list().size() != items) __builtin_trap();
    for (auto& [index, failure] : reply.failures) {
      if (index >= items) __builtin_trap();
      (void)failure_of_item(std::move(failure), "f", "worker 1");
    }
  } catch (const ProtocolError&) {
  }
}

// Runs the call twice on one callee, so that the second run finds what the first has created.
void as_call(const Message& message) {
  ChannelOptions options;
  options.spin_us = 0;
  auto [coordinator, worker] = Channel::pair(options);
  RegistryCallee callee(functions());
  for (int i = 0; i < 2; ++i) {
    answer_call(worker, message, callee);
    const std::optional<Message> reply = coordinator.try_receive({}, Lane::calls);
    if (reply.has_value() != (message.head.number != 0)) __builtin_trap();
    if (!reply) continue;
    if (reply->head.number != message.head.number) __builtin_trap();
    (void)parse_reply(*reply);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t size_max = 4096;  // so that the reply fits into the socket's buffer: it is read only afterwards
  if (size < 2 || size > size_max) return 0;
  const Message message = message_of(data, size);
  as_reply(message);
  as_call(message);
  return 0;
}
