// Large buffers between two processes of one machine. docs/shared_memory.md describes the layout.
//
// The sender keeps a few slots of anonymous shared memory, each passed once as a descriptor and mapped once on both
// sides. A buffer is copied into a free slot; the receiver uses it in place, and marks the slot free when the last
// reference is gone. No message goes back for that, and nothing has a name that a crash could leave behind.
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

/// Stands at the start of a slot; the data begins a page later.
struct SlotHead {
  enum State : std::uint32_t {
    free = 0,
    held = 1,
    abandoned = 2,  ///< the receiver forked and uses a copy: the sender forgets the slot
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

  /// Copies the bytes into a slot and returns its number; 0 if they should rather go through the stream. A slot that
  /// is new to the receiver is appended to `shared`, one that it should forget to `unshared`.
  std::uint32_t place(std::span<const std::byte> bytes, std::vector<Shared>& shared,
                      std::vector<std::uint32_t>& unshared);
  /// The message with these slots was not sent after all.
  void take_back(std::uint32_t number);
  /// The slots are in the order of their numbers, and as many and as large, together, as is counted and allowed.
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

/// The receiver's view of the same slots. What the peer says of them is checked.
class SlotReader {
 public:
  void share(std::uint32_t number, Fd memory);
  void unshare(std::uint32_t number);
  /// The slot's bytes, in place; the slot is free again when the buffer's owner is gone.
  [[nodiscard]] Buffer take(std::uint64_t number, std::uint64_t bytes);
  void check_invariants() const;

 private:
  std::map<std::uint64_t, std::shared_ptr<system::Mapping>> slots_;
};

}  // namespace miniray
