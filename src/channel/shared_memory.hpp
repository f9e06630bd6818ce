// Passes large buffers between two processes of one machine. docs/shared_memory.md describes the layout.
//
// The sender has a few slots of anonymous shared memory. It passes the descriptor of each slot once, and both sides map
// it once. The sender copies a buffer into a free slot; the receiver uses the buffer in place, and marks the slot free
// when the last reference to the buffer is gone. That takes no message, and a crash leaves no named memory behind.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/fd.hpp"
#include "base/system.hpp"
#include "miniray/array.hpp"

namespace miniray {

/// The start of a slot; the data begins a page later.
struct SlotHead {
  enum State : std::uint32_t {
    free = 0,
    held = 1,
    abandoned = 2,  ///< the receiver has forked, and uses a copy: the sender drops the slot
  };
  std::atomic<std::uint32_t> state;
};
inline constexpr std::size_t slot_head_bytes = 4096;
static_assert(sizeof(SlotHead) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

/// The sender's slots.
class SlotWriter {
 public:
  struct Shared {
    std::uint32_t number;
    Fd memory;
  };

  /// Copies the bytes into a slot and returns its number; 0 if they should go through the stream instead. Appends a
  /// slot that is new to the receiver to `shared`, and slots that the receiver should drop to `unshared`.
  std::uint32_t place(std::span<const std::byte> bytes, std::vector<Shared>& shared,
                      std::vector<std::uint32_t>& unshared);
  /// Frees the slot of a message that was not sent after all.
  void take_back(std::uint32_t number);
  /// Checks that the slots are in the order of their numbers, and that their count and total size are right and
  /// allowed.
  void check_invariants() const;

 private:
  struct Slot {
    std::uint32_t number;
    std::unique_ptr<system::Mapping> mapping;
    [[nodiscard]] std::size_t capacity() const { return mapping->bytes().size() - slot_head_bytes; }
    [[nodiscard]] SlotHead& head() const { return *reinterpret_cast<SlotHead*>(mapping->bytes().data()); }
  };
  Slot* find_free(std::size_t bytes);
  void uncount(const Slot& slot);
  bool make_room(std::size_t bytes, std::vector<std::uint32_t>& unshared);
  void drop_abandoned(std::vector<std::uint32_t>& unshared);

  std::vector<Slot> slots_;
  std::uint64_t total_bytes_ = 0;
  std::uint32_t last_number_ = 0;
};

/// The receiver's view of the same slots. Input is untrusted: each call throws ProtocolError if its arguments are not
/// valid.
class SlotReader {
 public:
  void share(std::uint32_t number, Fd memory);
  void unshare(std::uint32_t number);
  /// Returns the slot's bytes in place. The slot becomes free when the last copy of the buffer's owner is destroyed.
  [[nodiscard]] Buffer take(std::uint64_t number, std::uint64_t bytes);
  void check_invariants() const;

 private:
  std::map<std::uint64_t, std::shared_ptr<system::Mapping>> slots_;
  std::uint64_t total_bytes_ = 0;
  std::vector<std::weak_ptr<system::Mapping>> left_;  // dropped by the sender, and perhaps still in use here
};

}  // namespace miniray
