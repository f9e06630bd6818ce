// Memory for arrays that are sent without a copy between processes of one machine. docs/shared_memory.md describes the
// layout and the rules.
//
// The maker maps the memory as shared, fills it, and passes its descriptor with a message. Receivers map it privately:
// what they write stays in their process. The first send freezes the memory: the maker may not write to it any more, so
// that all receivers see the same bytes. When no receiver uses the memory any more, the maker uses it again for another
// array.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/fd.hpp"
#include "base/system.hpp"
#include "wire/passed.hpp"

namespace miniray {

/// The start of the memory; the data begins a page later.
struct InPlaceHead {
  std::atomic<std::uint32_t> users;  ///< how many receivers use the memory, or will when a message reaches them
};
inline constexpr std::size_t in_place_head_bytes = 4096;
static_assert(sizeof(InPlaceHead) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

/// Any thread may call these functions.
class InPlaceMemory : public Passed {
 public:
  /// Returns a buffer of uninitialised memory that can be sent without a copy. It is ordinary memory if it is small, or
  /// if the system has no shared memory left.
  [[nodiscard]] static Buffer allocate(std::size_t bytes);
  /// Returns a buffer in received memory. Input is untrusted: throws ProtocolError if the descriptor does not refer to
  /// memory of this kind.
  [[nodiscard]] static Buffer receive(Fd memory, std::uint64_t offset, std::uint64_t bytes);
  /// Returns the memory that these bytes lie in; nullptr if they lie elsewhere. It is valid as long as the bytes are.
  [[nodiscard]] static InPlaceMemory* find(std::span<const std::byte> bytes);

  /// Returns the memory that no array of this process uses to the system, instead of keeping it for the next arrays.
  static void drop_unused();

  /// Says that a channel of this process has ended. A receiver that was killed never says that it no longer uses the
  /// memory. So unused memory that a receiver may have goes back to the system, which frees it with the last process
  /// that has it.
  static void on_channel_end();

  struct Lent {
    Fd memory;
    std::uint64_t offset;  ///< of the bytes, counted from the end of the head
  };
  /// Counts one more receiver and returns what it needs. Returns nothing if the bytes have to be copied: because they
  /// are few, because this process has received them and written to them, or because this process was forked after it
  /// got them.
  [[nodiscard]] std::optional<Lent> lend(std::span<const std::byte> bytes);
  /// Undoes lend(), if the message was not sent after all.
  void take_back() {
    if (head().users.fetch_sub(1, std::memory_order_release) == 1) frozen_ = false;
  }
  /// Returns whether this process made the memory, and has sent it: it must not write to it any more.
  [[nodiscard]] bool frozen() const { return frozen_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool made_here() const { return made_here_; }

  ~InPlaceMemory() = default;

 private:
  friend struct InPlaceRegistry;
  InPlaceMemory(Fd memory, std::size_t file_bytes, bool made_here);
  [[nodiscard]] bool receiver_may_be_gone() const;
  [[nodiscard]] InPlaceHead& head() const {
    return *reinterpret_cast<InPlaceHead*>((head_ ? *head_ : data_).bytes().data());
  }
  [[nodiscard]] std::span<std::byte> data() const { return data_.bytes().subspan(in_place_head_bytes); }
  [[nodiscard]] Buffer buffer(std::shared_ptr<void> owner, std::uint64_t offset, std::uint64_t bytes);

  Fd memory_;
  bool made_here_;
  bool inherited_ = false;  // by a fork: the bytes are a private copy, and the descriptor is closed
  std::atomic<bool> frozen_ = false;
  std::atomic<std::uint64_t> lent_at_ = 0;  // how many channels had ended when it was last lent
  system::Mapping data_;                    // of the head and the data; a receiver's is private
  std::optional<system::Mapping> head_;     // a receiver's, which is shared
};

}  // namespace miniray
