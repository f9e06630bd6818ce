// Frames: how a message lies in a stream of bytes. docs/wire_format.md is the grammar; this is its other half.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "miniray/limits.hpp"
#include "miniray/message.hpp"
#include "wire/buffer_recycler.hpp"

namespace miniray {

inline constexpr std::uint8_t frame_kind_count = 12;
inline constexpr std::array<char, 2> frame_magic{'M', 'R'};

struct FrameHead {
  std::array<char, 2> magic = frame_magic;
  Message::Kind kind = Message::Kind::message;
  Codec codec = Codec::msgpack;
  std::uint32_t buffer_count = 0;
  std::uint64_t body_bytes = 0;
};
static_assert(sizeof(FrameHead) == 16 && offsetof(FrameHead, kind) == 2 && offsetof(FrameHead, codec) == 3 &&
              offsetof(FrameHead, buffer_count) == 4 && offsetof(FrameHead, body_bytes) == 8);

/// A CallHead as it lies in the stream, after the head of a frame whose kind has one.
struct FrameCallHead {
  std::int64_t number = 0, time_ns = 0;
  std::uint8_t verb = 0;
  std::array<std::uint8_t, 7> unused = {};
};
static_assert(sizeof(FrameCallHead) == 24 && offsetof(FrameCallHead, verb) == 16);

struct BufferEntry {
  std::uint64_t bytes = 0;
  BufferPlace place = {};
};
static_assert(sizeof(BufferEntry) == 16 && offsetof(BufferEntry, place) == 8 &&
              std::is_trivially_copyable_v<BufferEntry>);
static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

/// Appends the head and the buffer table of one frame. `call` is left out where the kind has none.
void append_frame_prefix(std::string& out, const FrameHead& head, const CallHead& call,
                         std::span<const BufferEntry> entries);

struct Frame {
  FrameHead head;
  CallHead call;  ///< if the kind has one
  std::vector<BufferEntry> entries;
  std::string body;
  std::vector<Buffer> buffers;  ///< one for each entry; without memory where the place is not the stream

  /// How long it is in the stream.
  [[nodiscard]] std::uint64_t stream_bytes() const;
};

/// A small frame that has been had whole. ProtocolError if it is anything else.
[[nodiscard]] Frame parse_frame(std::string_view bytes);

/// Makes frames of bytes as they come, in pieces of any size. Large pieces are read straight to where they stay.
/// Everything a peer says is checked against the limits before memory is taken for it: ProtocolError if it is not a
/// frame, MessageTooLarge if it is too large a one; after either, the stream cannot be followed any more.
class FrameReader {
 public:
  explicit FrameReader(std::uint64_t message_bytes_max = limits::message_bytes_max)
      : message_bytes_max_(message_bytes_max) {}

  /// Where the next bytes of the stream should be put. Never empty.
  [[nodiscard]] std::span<std::byte> room();
  /// So many bytes were put there.
  void commit(std::size_t bytes);

  /// A frame that says it is larger is not begun until this is raised; nothing is allocated for it meanwhile.
  void set_hold_above(std::uint64_t bytes);
  [[nodiscard]] bool holds_back() const { return state_ == State::held; }

  [[nodiscard]] bool has_frame() const { return !finished_.empty(); }
  [[nodiscard]] Frame take_frame();
  /// Bytes of a frame that has begun and is not complete; 0 between frames.
  [[nodiscard]] std::uint64_t pending_bytes() const { return (state_ == State::head ? 0 : received_) + staged(); }
  /// How large the frame that has begun says it is; 0 if not known yet.
  [[nodiscard]] std::uint64_t announced_bytes() const { return state_ == State::head ? 0 : announced_; }
  /// What has come of the frame that has begun agrees with its head, and with how far it has been read.
  void check_invariants() const;

 private:
  enum class State : std::uint8_t { head, call_head, table, held, body, buffers };

  [[nodiscard]] std::size_t staged() const { return staged_end_ - staged_begin_; }
  bool advance();  // one step; false if more bytes are needed
  bool read_head();
  bool read_call_head();
  bool read_table();
  bool read_body();
  bool read_buffers();
  std::size_t take_staged(std::byte* to, std::size_t most);
  void finish();
  [[nodiscard]] std::span<std::byte> direct_room();

  std::uint64_t message_bytes_max_;
  std::uint64_t hold_above_ = UINT64_MAX;
  std::unique_ptr<std::byte[]> staging_;  // not set to anything: most of it is never touched
  std::size_t staged_begin_ = 0, staged_end_ = 0;
  State state_ = State::head;
  Frame frame_;
  BufferRecycler recycler_;
  std::size_t buffer_ = 0;    // which buffer is being filled
  std::uint64_t filled_ = 0;  // of the body or of that buffer
  std::uint64_t received_ = 0, announced_ = 0;
  bool direct_ = false;  // the last room() was the final place
  std::deque<Frame> finished_;
};

}  // namespace miniray
