// The leader of another machine sends anything, over its lifeline and its line for data, to a rank in a collective
// call. The call returns, or it fails with a reason in one line of UTF-8. It does not wait for a peer that has broken
// the rules.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/fuzz_input.hpp"
#include "base/system.hpp"
#include "group/links.hpp"
#include "group/segment.hpp"
#include "group/spread_calls.hpp"
#include "miniray/error.hpp"
#include "miniray/group.hpp"
#include "wire/frame.hpp"
#include "wire/utf8.hpp"

namespace {

using miniray::Fd;
using miniray::FuzzInput;
using miniray::GroupCall;
using miniray::GroupLinks;
using miniray::GroupSegment;
using miniray::Message;
using miniray::Value;

// The rank of this process is `own`, and that of the fuzzer is the other one. Each is alone on its machine.
constexpr std::size_t group_fuzz_ranks = 2;

// A frame with this body, and with buffers of these sizes.
std::string group_frame(const std::string& body, const std::vector<std::size_t>& sizes) {
  std::vector<miniray::BufferEntry> entries;
  std::size_t total = 0;
  for (const std::size_t size : sizes) {
    entries.push_back({.bytes = size});
    total += size;
  }
  std::string bytes;
  append_frame_prefix(bytes, {.buffer_count = static_cast<std::uint32_t>(entries.size()), .body_bytes = body.size()},
                      {}, entries);
  return bytes + body + std::string(total, '\1');
}

std::size_t piece_bytes(unsigned choice, std::size_t data_bytes) {
  const std::array<std::size_t, 6> sizes{data_bytes, data_bytes / 2, 0, 1, data_bytes + 1, data_bytes / 2 / 4 * 4};
  return sizes[choice % sizes.size()];
}

std::string parcel_of(FuzzInput& input, const GroupCall& call, std::uint64_t number, std::size_t data_bytes) {
  std::vector<std::size_t> sizes;
  const unsigned count = input.byte() % 4;
  for (unsigned i = 0; i < count; ++i) sizes.push_back(piece_bytes(input.byte(), data_bytes));
  miniray::List head{number,
                     static_cast<std::int64_t>(call.kind),
                     name_of(call.dtype),
                     static_cast<std::int64_t>(call.op),
                     call.root,
                     call.bytes};
  if (const unsigned changed = input.byte(); changed % 2 == 1)  // one field of it is another one
    head[changed / 2 % head.size()] = changed / 2 % 3 == 0 ? Value("int8") : Value(std::int64_t{changed} - 100);
  return group_frame(encode(Value(std::move(head))).body, sizes);
}

// What the peer sends on its two lines, before the call begins.
struct GroupStreams {
  std::string life, data;
};

GroupStreams streams_of(FuzzInput& input, const GroupCall& call, std::size_t data_bytes) {
  GroupStreams streams;
  std::uint64_t number = 0;
  while (!input.empty()) {
    const unsigned action = input.byte();
    std::string& either = action / 6 % 2 == 0 ? streams.data : streams.life;
    switch (action % 6) {
      case 0:
      case 1:
        streams.data += parcel_of(input, call, ++number, data_bytes);
        break;
      case 2:
        either += group_frame(std::string(input.take(input.byte())), {});
        break;
      case 3:
        streams.life += group_frame(encode(Value{{"left", std::int64_t{input.byte()} - 1}}).body, {});
        break;
      case 4: {
        const std::string reason(action / 6 * 30, 'x');
        Value news{{"broken", reason + miniray::to_utf8(input.take(input.byte()))}, {"call", input.byte()}};
        streams.life += group_frame(encode(news).body, {});
        break;
      }
      default:
        either += input.take(input.byte());
        break;
    }
  }
  return streams;
}

// Returns whether a reader of these bytes refuses them, rather than wait for more.
bool is_refused(std::string_view bytes) {
  miniray::FrameReader reader;
  try {
    while (!bytes.empty()) {
      const std::span<std::byte> room = reader.room();
      const std::size_t size = std::min(room.size(), bytes.size());
      std::memcpy(room.data(), bytes.data(), size);
      reader.commit(size);
      bytes.remove_prefix(size);
    }
    return false;
  } catch (const miniray::Error&) {
    return true;
  }
}

void make_call(miniray::SpreadCalls& calls, const GroupCall& call, std::size_t part, std::size_t own) {
  using Kind = GroupCall::Kind;
  std::vector<std::byte> mine(part), all(part * group_fuzz_ranks);
  const auto root = static_cast<std::size_t>(call.root);
  switch (call.kind) {
    case Kind::join:
    case Kind::barrier:
      return calls.barrier();
    case Kind::all_reduce:
      return calls.reduce(mine, call.dtype, call.op, miniray::SpreadCalls::every_node, true);
    case Kind::reduce:
      return calls.reduce(mine, call.dtype, call.op, root, root == own);
    case Kind::broadcast:
      return calls.broadcast(mine, root);
    case Kind::scatter:
      return calls.scatter(all, mine, root);
    case Kind::gather:
      return calls.gather(mine, all, root, root == own);
    case Kind::all_gather:
      return calls.gather(mine, all, miniray::SpreadCalls::every_node, true);
    case Kind::reduce_scatter:
      return calls.reduce_scatter(all, mine, call.dtype, call.op);
  }
}

miniray::ChannelOptions group_line_options(bool life) {
  miniray::ChannelOptions options;
  options.peer = "there";
  options.shared_memory = false;
  options.spin_us = 0;
  if (life) options.message_bytes_max = miniray::limits::request_bytes_max;
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  constexpr std::size_t size_max = 4096;
  if (size < 3 || size > size_max) return 0;
  static const int no_spinning = setenv("MINIRAY_SPIN_US", "0", 1);
  if (no_spinning != 0) __builtin_trap();
  FuzzInput input({reinterpret_cast<const char*>(bytes), size});
  constexpr std::array<miniray::DType, 3> dtypes{miniray::DType::float32, miniray::DType::int64,
                                                 miniray::DType::float64};
  constexpr std::array<std::size_t, 3> parts{0, 64, 20'000};  // the last one takes two exchanges
  const unsigned kind = input.byte(), how = input.byte();
  const std::size_t own = how % 2, part = parts[how / 2 % 3];
  const auto which = static_cast<GroupCall::Kind>(kind % 9);
  const GroupCall call{.kind = which,
                       .dtype = dtypes[kind / 9 % 3],
                       .op = static_cast<miniray::ReduceOp>(how / 6 % 4),
                       .root = static_cast<std::int32_t>(how / 24 % 2),
                       .bytes = part};

  GroupStreams streams = streams_of(input, call, part);
  streams.data.append(64, '\xFF');  // no frame: a call that waits for more fails
  if (!is_refused(streams.data)) return -1;
  auto [life_here, life_there] = miniray::system::socket_pair();
  auto [data_here, data_there] = miniray::system::socket_pair();
  (void)miniray::system::write_some(life_there.get(), streams.life);
  (void)miniray::system::write_some(data_there.get(), streams.data);

  std::vector<GroupLinks::Lifeline> lifelines;
  std::vector<GroupLinks::DataLine> data;
  lifelines.push_back({1 - own, miniray::Channel(life_here.release(), group_line_options(true)), {}, {}});
  data.push_back({1 - own, miniray::Channel(data_here.release(), group_line_options(false)), {}, {}});
  std::vector<miniray::GroupMember> members(group_fuzz_ranks, {"there", 0});
  members[own] = {"here", getpid()};
  constexpr GroupSegment::Layout layout{1, 2, 32 * miniray::limits::kib};  // less than usual, which takes less time
  GroupSegment segment(GroupSegment::make(layout), layout, {std::move(members), own, {{{0}, {1}}, own}, 60.0, [] {}});
  miniray::SpreadCalls calls(segment, GroupLinks(std::move(lifelines), std::move(data), 1000));
  try {
    segment.begin(call);
    make_call(calls, call, part, own);
    segment.next_round();
  } catch (const miniray::GroupBroken& error) {
    const std::string text = error.what();
    if (text.empty() || text != miniray::to_utf8_line(text)) __builtin_trap();
  } catch (const miniray::ProtocolError&) {
  }
  calls.leave();
  return 0;
}
