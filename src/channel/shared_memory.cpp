#include "channel/shared_memory.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

#include "base/check.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

std::size_t capacity_for(std::size_t bytes) {
  // The slot has an eighth of room to spare, so that messages which grow a little fit into the same slot.
  const std::size_t wanted = bytes + bytes / 8;
  return (wanted + slot_head_bytes - 1) / slot_head_bytes * slot_head_bytes;
}

// Owns a received buffer: as long as it lives, the sender does not write to the slot again. After a fork, parent and
// child would share the slot and see each other's writes. So before a fork, every held slot is replaced by a private
// copy, and marked as abandoned.
class Hold {
 public:
  explicit Hold(std::shared_ptr<system::Mapping> mapping) : mapping_(std::move(mapping)) {
    MINIRAY_CHECK(mapping_ && mapping_->bytes().size() > slot_head_bytes);
    const std::scoped_lock lock(all().mutex);
    const bool added = all().holds.insert(this).second;
    MINIRAY_CHECK(added);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    const std::scoped_lock lock(all().mutex);
    const std::size_t removed = all().holds.erase(this);
    MINIRAY_CHECK(removed == 1, removed);
    if (!is_private_) set_state(SlotHead::free);
  }

 private:
  struct All {
    std::mutex mutex;
    std::set<Hold*> holds;
  };
  static All& all() {
    static All* const instance = [] {  // never destroyed: arrays may outlive static objects
      auto* made = new All;
      pthread_atfork(
          [] {
            all().mutex.lock();
            for (Hold* hold : all().holds) hold->make_private();
          },
          [] { all().mutex.unlock(); }, [] { all().mutex.unlock(); });
      return made;
    }();
    return *instance;
  }
  void set_state(SlotHead::State state) const {
    reinterpret_cast<SlotHead*>(mapping_->bytes().data())->state.store(state, std::memory_order_release);
  }
  void make_private() {
    if (is_private_) return;
    set_state(SlotHead::abandoned);  // while this address still is the shared memory
    is_private_ = true;
    mapping_->make_private();  // if there is no memory for a copy, parent and child share the slot
  }

  std::shared_ptr<system::Mapping> mapping_;
  bool is_private_ = false;
};

}  // namespace

SlotWriter::Slot* SlotWriter::find_free(std::size_t bytes) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.capacity() < bytes || slot.head().state.load(std::memory_order_acquire) != SlotHead::free) continue;
    if (best == nullptr || slot.capacity() < best->capacity()) best = &slot;
  }
  return best;
}

void SlotWriter::uncount(const Slot& slot) {
  MINIRAY_CHECK(total_bytes_ >= slot.mapping->bytes().size(), total_bytes_, slot.mapping->bytes().size());
  total_bytes_ -= slot.mapping->bytes().size();
}

void SlotWriter::drop_abandoned(std::vector<std::uint32_t>& unshared) {
  std::erase_if(slots_, [&](const Slot& slot) {
    if (slot.head().state.load(std::memory_order_acquire) != SlotHead::abandoned) return false;
    uncount(slot);
    unshared.push_back(slot.number);
    return true;
  });
}

bool SlotWriter::make_room(std::size_t bytes, std::vector<std::uint32_t>& unshared) {
  if (bytes > limits::shared_memory_bytes_max) return false;
  drop_abandoned(unshared);
  const auto fits = [&] {
    return total_bytes_ + bytes <= limits::shared_memory_bytes_max && slots_.size() < limits::shared_slots_max;
  };
  for (auto slot = slots_.begin(); slot != slots_.end() && !fits();) {
    if (slot->head().state.load(std::memory_order_acquire) != SlotHead::free) {
      ++slot;
      continue;
    }
    uncount(*slot);
    unshared.push_back(slot->number);
    slot = slots_.erase(slot);
  }
  MINIRAY_CHECK(!slots_.empty() || total_bytes_ == 0, total_bytes_);
  return fits();
}

std::uint32_t SlotWriter::place(std::span<const std::byte> bytes, std::vector<Shared>& shared,
                                std::vector<std::uint32_t>& unshared) {
  MINIRAY_CHECK(bytes.size() >= limits::shared_buffer_bytes_min, bytes.size());
  Slot* slot = find_free(bytes.size());
  if (slot == nullptr) {
    const std::size_t total = slot_head_bytes + capacity_for(bytes.size());
    if (shared.size() == limits::descriptors_per_message_max || !make_room(total, unshared)) return 0;
    Fd memory = system::sealed_memory("miniray", total);
    if (!memory.valid()) return 0;
    std::unique_ptr<system::Mapping> mapping;
    try {
      mapping = std::make_unique<system::Mapping>(memory.get(), total);
    } catch (const SystemError&) {  // no room in the address space; the stream needs none
      return 0;
    }
    slots_.push_back({++last_number_, std::move(mapping)});
    total_bytes_ += total;
    MINIRAY_CHECK(total_bytes_ <= limits::shared_memory_bytes_max && slots_.size() <= limits::shared_slots_max,
                  total_bytes_, slots_.size());
    slot = &slots_.back();
    shared.push_back({slot->number, std::move(memory)});
  }
  MINIRAY_CHECK(slot->capacity() >= bytes.size() && slot->number != 0, slot->capacity(), bytes.size(), slot->number);
  slot->head().state.store(SlotHead::held, std::memory_order_relaxed);
  std::memcpy(slot->mapping->bytes().data() + slot_head_bytes, bytes.data(), bytes.size());
  return slot->number;
}

void SlotWriter::take_back(std::uint32_t number) {
  for (Slot& slot : slots_) {
    if (slot.number == number) slot.head().state.store(SlotHead::free, std::memory_order_relaxed);
  }
}

void SlotWriter::check_invariants() const {
  std::uint64_t total = 0;
  std::uint32_t last = 0;
  for (const Slot& slot : slots_) {
    MINIRAY_CHECK(slot.number > last && slot.number <= last_number_, slot.number, last, last_number_);
    MINIRAY_CHECK(slot.capacity() >= limits::shared_buffer_bytes_min, slot.number, slot.capacity());
    last = slot.number;
    total += slot.mapping->bytes().size();
  }
  MINIRAY_CHECK(total == total_bytes_ && total <= limits::shared_memory_bytes_max, total, total_bytes_);
  MINIRAY_CHECK(slots_.size() <= limits::shared_slots_max, slots_.size());
}

void SlotReader::share(std::uint32_t number, Fd memory) {
  const std::size_t bytes = memory.valid() ? system::sealed_memory_bytes(memory.get()) : 0;
  if (number == 0 || bytes <= slot_head_bytes || bytes > 2 * limits::shared_memory_bytes_max ||
      total_bytes_ + bytes > 2 * limits::shared_memory_bytes_max || slots_.size() >= 2 * limits::shared_slots_max ||
      slots_.contains(number))
    throw ProtocolError("the peer offered shared memory that cannot be used (slot " + std::to_string(number) + ", " +
                        std::to_string(bytes) + " bytes, besides " + std::to_string(total_bytes_) + " bytes)");
  total_bytes_ += bytes;
  slots_[number] = std::make_shared<system::Mapping>(memory.get(), bytes);
}

void SlotReader::unshare(std::uint32_t number) {
  const auto slot = slots_.find(number);
  if (slot == slots_.end())
    throw ProtocolError("the peer dropped shared memory that it did not offer (slot " + std::to_string(number) + ")");
  total_bytes_ -= slot->second->bytes().size();
  left_.push_back(slot->second);
  slots_.erase(slot);
  std::erase_if(left_, [](const auto& mapping) { return mapping.expired(); });
  if (left_.size() > limits::left_slots_max)
    throw ProtocolError("the peer dropped " + std::to_string(left_.size()) +
                        " slots of shared memory whose arrays are still in use");
}

Buffer SlotReader::take(std::uint64_t number, std::uint64_t bytes) {
  const auto slot = slots_.find(number);
  if (slot == slots_.end() || bytes > slot->second->bytes().size() - slot_head_bytes)
    throw ProtocolError("the peer refers to shared memory that it did not offer (slot " + std::to_string(number) +
                        ", " + std::to_string(bytes) + " bytes)");
  std::byte* data = slot->second->bytes().data() + slot_head_bytes;
  return {std::make_shared<Hold>(slot->second), data, static_cast<std::size_t>(bytes)};
}

void SlotReader::check_invariants() const {
  MINIRAY_CHECK(slots_.size() <= 2 * limits::shared_slots_max, slots_.size());
  std::uint64_t total = 0;
  for (const auto& [number, mapping] : slots_) total += mapping->bytes().size();
  MINIRAY_CHECK(total == total_bytes_, total, total_bytes_);
  for (const auto& [number, mapping] : slots_)
    MINIRAY_CHECK(number != 0 && mapping && mapping->bytes().size() > slot_head_bytes, number);
}

}  // namespace miniray
