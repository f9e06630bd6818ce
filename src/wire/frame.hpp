// Frames: how messages are laid out in a stream of bytes. docs/wire_format.md is the grammar. Input is untrusted.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
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

/// A CallHead as it is laid out in the stream. It follows the FrameHead in frames of the kinds that have one.
struct FrameCallHead {
  std::int64_t number = 0, time_ns = 0;
  std::uint8_t verb = 0;
  std::array<std::uint8_t, 7> unused = {};
};
static_assert(sizeof(FrameCallHead) == 24 && offsetof(FrameCallHead, verb) == 16);

/// One entry of a frame's table of buffers.
struct BufferEntry {
  std::uint64_t bytes = 0;
  BufferPlace place = {};
};
static_assert(sizeof(BufferEntry) == 16 && offsetof(BufferEntry, place) == 8 &&
              std::is_trivially_copyable_v<BufferEntry>);
static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

/// Appends the head, the call head (if the kind has one) and the table of buffers of one frame.
void append_frame_prefix(std::string& out, const FrameHead& head, const CallHead& call,
                         std::span<const BufferEntry> entries);

struct Frame {
  FrameHead head;
  CallHead call;  ///< if the kind has one
  std::vector<BufferEntry> entries;
  std::string body;
  std::vector<Buffer> buffers;  ///< one for each entry; empty if the buffer is not in the stream

  /// Returns how many bytes the frame takes in the stream.
  [[nodiscard]] std::uint64_t stream_bytes() const;
};

/// Parses a complete small frame. Throws ProtocolError if the bytes are anything else, MessageTooLarge if the frame
/// announces more than the limits.
[[nodiscard]] Frame parse_frame(std::string_view bytes, std::uint64_t message_bytes_max = limits::message_bytes_max);

/// Parses a complete frame into `message` if it is a message, call or reply without buffers, as most frames are.
/// Returns false if it is anything else, which parse_frame() parses. Throws as parse_frame() does.
[[nodiscard]] bool parse_plain_message(std::string_view bytes, std::uint64_t message_bytes_max,
                                       std::optional<Message>& message);
/// The reverse: the head and the call head (if the kind has one) of a frame without buffers.
class PlainPrefix {
 public:
  explicit PlainPrefix(const Message& message);
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, sizeof(FrameHead) + sizeof(FrameCallHead)> bytes_;
  std::size_t size_ = sizeof(FrameHead);
};

/// Parses frames from a stream that arrives in pieces of any size. The caller reads into room() and calls commit(); the
/// bytes of large bodies and buffers go directly to their final place. Every size is checked against the limits before
/// memory is allocated, and memory grows as bytes arrive: commit() throws ProtocolError for bytes that are not a frame
/// and MessageTooLarge for a frame that is too large. Both functions throw std::bad_alloc if there is no memory for
/// what has arrived. After any of these, the reader cannot continue.
class FrameReader {
 public:
  explicit FrameReader(std::uint64_t message_bytes_max = limits::message_bytes_max)
      : message_bytes_max_(message_bytes_max) {}

  /// Returns the memory for the next bytes of the stream. It is never empty.
  [[nodiscard]] std::span<std::byte> room();
  /// Tells the reader that the next `bytes` bytes are in room().
  void commit(std::size_t bytes);

  /// Sets a threshold. If a frame announces more bytes than this, the reader stops before the frame and allocates
  /// nothing for it, until another call raises the threshold.
  void set_hold_above(std::uint64_t bytes);
  [[nodiscard]] bool holds_back() const { return state_ == State::held; }

  [[nodiscard]] bool has_frame() const { return !finished_.empty(); }
  [[nodiscard]] Frame take_frame();
  /// Returns how many bytes of an incomplete frame have arrived; 0 between frames.
  [[nodiscard]] std::uint64_t pending_bytes() const { return (state_ == State::head ? 0 : received_) + staged(); }
  /// Returns how many bytes the head of the incomplete frame announces; 0 if no head has arrived.
  [[nodiscard]] std::uint64_t announced_bytes() const { return state_ == State::head ? 0 : announced_; }
  /// Checks that the parts of the incomplete frame agree with its head and with the state of the reader.
  void check_invariants() const;

 private:
  enum class State : std::uint8_t { head, call_head, table, held, body, buffers };

  [[nodiscard]] std::size_t staged() const { return staged_end_ - staged_begin_; }
  bool advance();  // one step; false if more bytes are needed
  bool read_head();
  bool read_call_head();
  bool read_table();
  void require_memory() const;
  bool read_body();
  bool read_buffers();
  std::size_t take_staged(std::byte* to, std::size_t most);
  void finish();
  [[nodiscard]] static bool arrives_in_pages(const BufferEntry& entry);
  [[nodiscard]] std::span<std::byte> direct_room();

  std::uint64_t message_bytes_max_;
  std::uint64_t hold_above_ = UINT64_MAX;
  std::unique_ptr<std::byte[]> staging_;  // uninitialised, because most of it is never used
  std::size_t staged_begin_ = 0, staged_end_ = 0;
  State state_ = State::head;
  Frame frame_;
  BufferRecycler recycler_;
  system::PageMemory arriving_;  // of the large buffer that is being filled
  std::size_t buffer_ = 0;       // which buffer is being filled
  std::uint64_t filled_ = 0;     // how many bytes of the body, or of that buffer, are there
  std::uint64_t received_ = 0, announced_ = 0;
  bool direct_ = false;  // the last room() was the final place of the bytes
  std::deque<Frame> finished_;
};

}  // namespace miniray
