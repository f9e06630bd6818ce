// Passes small frames between two processes of one machine without the kernel: each direction has a ring in shared
// memory, beside the socket. docs/shared_memory.md describes the layout.
//
// Frames keep their order across ring and socket: each record in the ring says how many bytes the writer had sent
// through the socket before it, and the reader takes the record once it has read as many. A reader sleeps until the
// socket is readable, so the writer has to wake it with a frame through the socket (a bell). A reader that will look at
// the ring before it sleeps sets `quiet`, and needs no bell.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/fd.hpp"
#include "base/system.hpp"
#include "miniray/limits.hpp"

namespace miniray {

/// The start of a ring; the records begin a page later. Each word has a cache line of its own.
struct RingHead {
  alignas(64) std::atomic<std::uint64_t> written;  ///< how many bytes were ever written
  alignas(64) std::atomic<std::uint64_t> read;     ///< how many of them were read
  alignas(
      64) std::atomic<std::uint32_t> quiet;  ///< 1: the reader looks before it sleeps, or a bell is on its way to it
  std::atomic<std::uint32_t>
      cpu;  ///< 1 + the number of the CPU on which the reader has last waited awake; 0: it sleeps
};
struct RingRecord {
  std::uint64_t stream_bytes = 0;  ///< how many bytes of the socket's stream come before this frame
  std::uint64_t frame_bytes = 0;
};
inline constexpr std::size_t ring_head_bytes = 4096;
/// Each record begins a cache line, so that the two sides never work on the same one.
inline constexpr std::size_t ring_record_step = 64;
static_assert(sizeof(RingHead) <= ring_head_bytes && sizeof(RingRecord) == 16);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(limits::ring_bytes % ring_record_step == 0, "the head of a record never wraps around");

/// The shared memory of a ring, as each side maps it.
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
  /// Creates a ring. Returns it with the descriptor that the reader needs, or nothing if the system has no room for it.
  static std::optional<std::pair<RingWriter, Fd>> make();

  enum class Outcome : std::uint8_t {
    put,
    put_and_reader_sleeps,  ///< the caller must ring the bell
    not_put,  ///< the caller must send the frame through the socket: there is no room in the ring, or the reader sleeps
              ///< and the socket wakes it, or the reader has been silent and the socket shows whether it still exists
  };
  /// Puts a frame, which comes in pieces. `stream_bytes` is how many bytes the caller has written to the socket, and
  /// `now` is now_ns().
  [[nodiscard]] Outcome put(std::uint64_t stream_bytes, std::span<const iovec> frame, std::int64_t now);
  /// Tells the ring that the caller could not send what should have woken the reader.
  void wake_failed() { head().quiet.store(0); }
  /// Returns whether the reader was last awake on the CPU of this thread. It cannot run there until this thread sleeps.
  [[nodiscard]] bool reader_waits_for_this_cpu() const {
    return head().cpu.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(1 + system::current_cpu());
  }
  void check_invariants() const;

 private:
  using Ring::Ring;
  void look_at_reader(std::int64_t now);
  [[nodiscard]] std::uint64_t room() const { return limits::ring_bytes - (written_ - seen_read_); }
  [[nodiscard]] bool reader_sleeps();

  std::uint64_t written_ = 0, seen_read_ = 0;
  std::int64_t looked_ns_ = 0;        // when this side looked at `read`
  std::int64_t sign_of_life_ns_ = 0;  // the reader was alive after this, or a frame went through the socket then
};

/// The reader's side. The content of the ring is untrusted.
class RingReader : Ring {
 public:
  /// Maps a ring. Throws ProtocolError if the memory is not one.
  explicit RingReader(Fd memory);

  [[nodiscard]] bool empty() const {
    __builtin_prefetch(data().data() + read_ % limits::ring_bytes);  // two cache misses take as long as one
    return head().written.load() == read_;
  }
  /// Returns the bytes of the next frame, if there is one and the caller has read as much of the socket's stream as it
  /// needs. They are valid until the next call. Throws ProtocolError.
  [[nodiscard]] std::optional<std::string_view> take(std::uint64_t stream_bytes);
  /// Returns whether take() would return a frame, or throw. The ring must not be empty.
  [[nodiscard]] bool may_take(std::uint64_t stream_bytes) const;
  /// Asks the writer for a bell with its next frame. empty() and take() see every frame from before this call.
  void sleep() {
    watches_ = false;
    if (std::exchange(cpu_, 0) != 0) head().cpu.store(0, std::memory_order_relaxed);
    head().quiet.store(0);
  }
  /// Tells the writer that this side will look at the ring, or call sleep(), before it sleeps, and needs no bell.
  void watch() {
    if (watches_) return;  // a store would take the cache line away from the writer
    watches_ = true;
    head().quiet.store(1, std::memory_order_relaxed);
  }
  /// Tells the writer on which CPU this side is, until the next sleep().
  void show_cpu() {
    const auto cpu = static_cast<std::uint32_t>(1 + system::current_cpu());
    if (std::exchange(cpu_, cpu) != cpu) head().cpu.store(cpu, std::memory_order_relaxed);
  }
  /// Returns whether watch() was called after the last sleep().
  [[nodiscard]] bool watches() const { return watches_; }
  void check_invariants() const;

 private:
  std::uint64_t read_ = 0;
  bool watches_ = false;
  std::uint32_t cpu_ = 0;  // as the head has it
  std::string frame_;      // a copy, because the peer could change the ring while the frame is parsed
};

}  // namespace miniray
