// A worker that sends any bytes to the store of its server, and a server that answers a worker with anything. The store
// answers each request that it can read once, and the worker gets a buffer of the size that it wants or an error.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/fuzz_input.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "worker/supply.hpp"

namespace {

using miniray::Buffer;
using miniray::Fd;
using miniray::FuzzInput;

struct SupplyRecord {
  std::uint64_t number, bytes;
};

void send_bytes(int socket, std::string_view bytes, std::span<const int> descriptors = {}) {
  const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  if (!bytes.empty()) (void)miniray::system::send(socket, std::span(&piece, 1), descriptors);
}

std::string_view bytes_of(const SupplyRecord& record) {
  return {reinterpret_cast<const char*>(&record), sizeof(record)};
}

// Drops the answers that have come, and returns how many those were.
std::size_t take_answers(int socket) {
  std::size_t answers = 0;
  SupplyRecord answer{};
  std::vector<Fd> descriptors;
  while (miniray::system::receive(socket, std::as_writable_bytes(std::span(&answer, 1)), miniray::system::Block::no,
                                  &descriptors)
             .bytes == sizeof(answer)) {
    if (descriptors.size() > 1) __builtin_trap();
    if (!descriptors.empty() && miniray::system::sealed_memory_bytes(descriptors[0].get()) < answer.bytes)
      __builtin_trap();
    if (descriptors.empty() && answer.bytes != 0) __builtin_trap();
    descriptors.clear();
    ++answers;
  }
  return answers;
}

void ask_store(FuzzInput input) {
  constexpr std::uint64_t liar = 1, other = 2;
  auto [worker, server] = miniray::system::socket_pair();
  miniray::SupplyStore store;
  bool listens = true;
  std::size_t sent = 0, answered = 0;
  std::uint64_t number = 0;
  while (!input.empty() && listens) {
    const unsigned action = input.byte();
    switch (action % 6) {
      case 0:
      case 1: {
        std::string_view bytes = input.take(action / 6);
        const SupplyRecord near{action / 6, 0};
        if (action % 6 == 1) bytes = bytes_of(near);
        send_bytes(worker.get(), bytes);
        sent += bytes.size();
        break;
      }
      case 2: {
        const std::string content(action, 'x');
        store.put(number++, std::as_bytes(std::span(content)), {liar, other});
        break;
      }
      case 3:
        store.put_missing(number++, {liar});
        break;
      case 4:
        store.set_expecting(action / 6 % 2 == 0);
        break;
      default:
        store.drop_worker(action / 6 % 2 == 0 ? other : liar);
        break;
    }
    while (listens && miniray::system::poll_one(server.get(), POLLIN, 0) > 0)
      listens = store.on_request(liar, server.get());
    answered += take_answers(worker.get());
    if (answered > sent / sizeof(SupplyRecord)) __builtin_trap();
  }
  store.drop_worker(liar);
  store.drop_worker(other);
}

// A descriptor that a server may send, and that may be no memory at all.
Fd made_descriptor(unsigned kind, std::size_t bytes) {
  if (kind == 0) return miniray::system::sealed_memory("fuzz", bytes);
  if (kind == 1) {  // it may shrink
    Fd memory(memfd_create("fuzz", MFD_CLOEXEC));
    if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) __builtin_trap();
    return memory;
  }
  if (kind == 2) return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return std::move(miniray::system::socket_pair().first);
}

void answer_worker(FuzzInput input) {
  const std::uint64_t number = input.byte(), bytes = input.byte() * 64;
  const unsigned count = input.byte() % 4, form = input.byte();
  auto [worker, server] = miniray::system::socket_pair();
  std::vector<Fd> owned;
  std::vector<int> descriptors;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned kind = input.byte();
    owned.push_back(made_descriptor(kind % 4, std::max<std::size_t>(kind / 4 * 256, 1)));
    descriptors.push_back(owned.back().get());
  }
  const SupplyRecord right{number, bytes};
  send_bytes(server.get(), form % 2 == 0 ? bytes_of(right) : input.take(64), descriptors);
  server.reset();  // a worker that waits for more sees the end
  miniray::SupplyLine line(std::move(worker));
  try {
    Buffer got = line.fetch(number, bytes);
    if (got.size != bytes) __builtin_trap();
    std::ranges::fill(got.bytes(), std::byte{1});  // all of it is there, and it is this worker's own
  } catch (const miniray::ProtocolError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t size_max = 4096;
  if (size < 2 || size > size_max) return 0;
  const FuzzInput input({reinterpret_cast<const char*>(data + 1), size - 1});
  if (data[0] % 2 == 0)
    ask_store(input);
  else
    answer_worker(input);
  return 0;
}
