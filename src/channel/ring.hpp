// Small frames between two processes of one machine, without the kernel: a ring in shared memory, one for each
// direction, beside the socket. docs/shared_memory.md describes the layout.
//
// The order of all frames is kept: each record in the ring says how far the socket's stream had come when it was
// written, and is read when the reader has come as far. The socket is still what a reader sleeps on. One that is awake
// says so, and is not rung for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/fd.hpp"
#include "base/system.hpp"
#include "miniray/limits.hpp"

namespace miniray {

/// Stands at the start of a ring; the records begin a page later. Each word has a cache line of its own.
struct RingHead {
  alignas(64) std::atomic<std::uint64_t> written;  ///< bytes, ever
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::atomic<std::uint32_t> quiet;  ///< 1: the reader looks by itself, or has been rung for
};
struct RingRecord {
  std::uint64_t stream_bytes = 0;  ///< of the socket's stream that come before this frame
  std::uint64_t frame_bytes = 0;
};
inline constexpr std::size_t ring_head_bytes = 4096;
static_assert(sizeof(RingHead) <= ring_head_bytes && sizeof(RingRecord) == 16);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(limits::ring_bytes % sizeof(RingRecord) == 0, "a record's head is never in two places");

/// Shared memory of which each side has a view.
class Ring {
 protected:
  explicit Ring(std::unique_ptr<system::Mapping> mapping) : mapping_(std::move(mapping)) {}
  [[nodiscard]] RingHead& head() const { return *reinterpret_cast<RingHead*>(mapping_->bytes().data()); }
  [[nodiscard]] std::span<std::byte> data() const { return mapping_->bytes().subspan(ring_head_bytes); }

 private:
  std::unique_ptr<system::Mapping> mapping_;
};

class RingWriter : Ring {
 public:
  /// With the descriptor that the reader needs; nothing if the system has no room for it.
  static std::optional<std::pair<RingWriter, Fd>> make();

  enum class Outcome : std::uint8_t {
    put,
    put_while_it_fell_asleep,  ///< and it has to be woken
    not_put,  ///< there is no room; or the reader sleeps, and the frame had better go where that wakes it; or nothing
              ///< was heard of it for a while, and the socket tells whether it is still there
  };
  /// A frame, in pieces.
  [[nodiscard]] Outcome put(std::uint64_t stream_bytes, std::span<const iovec> frame);
  /// What was to wake the reader did not go out after all.
  void was_not_woken() { head().quiet.store(0); }
  void check_invariants() const;

 private:
  using Ring::Ring;
  [[nodiscard]] std::uint64_t room();
  [[nodiscard]] bool reader_sleeps();

  std::uint64_t written_ = 0, seen_read_ = 0;
  std::int64_t put_ns_ = 0, sign_of_life_ns_ = 0;
};

/// What the peer writes there is checked.
class RingReader : Ring {
 public:
  /// ProtocolError if it is not such memory.
  explicit RingReader(Fd memory);

  [[nodiscard]] bool empty() const { return head().written.load() == read_; }
  /// The next frame's bytes, if there is one and the stream has come as far; valid until the next call.
  [[nodiscard]] std::optional<std::string_view> take(std::uint64_t stream_bytes);
  /// What comes from now on has to be rung for; what came before is seen by empty() and take().
  void sleep() { head().quiet.store(0); }
  /// What comes need not be rung for.
  void watch() { head().quiet.store(1, std::memory_order_relaxed); }
  void check_invariants() const;

 private:
  std::uint64_t read_ = 0;
  std::string frame_;  // a copy, since the peer could still change what is in the ring
};

}  // namespace miniray
