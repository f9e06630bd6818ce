#include "wire/in_place_memory.hpp"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "base/check.hpp"
#include "base/free_memory.hpp"
#include "base/page_map.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

std::atomic<std::uint64_t> ended_channels = 0;

}  // namespace

// All in-place memory of this process. A fork copies the whole process, so this is a property of the process. It is
// never destroyed, because arrays may outlive static objects.
struct InPlaceRegistry {
  std::mutex mutex;
  std::map<const std::byte*, InPlaceMemory*> used;     // by the address of the data
  std::vector<std::unique_ptr<InPlaceMemory>> unused;  // made here; receivers may still use it; the oldest first
  std::size_t unused_bytes = 0;
  static inline std::atomic<bool> exists = false;  // so that a process without such arrays makes none of this

  static InPlaceRegistry& get() {
    static InPlaceRegistry* const instance = [] {
      (void)process_generation();  // its fork handlers come first, so that its mutex is locked after this one
      auto* made = new InPlaceRegistry;
      pthread_atfork([] { get().before_fork(); }, [] { get().after_fork_in_parent(); },
                     [] { get().after_fork_in_child(); });
      exists = true;
      return made;
    }();
    return *instance;
  }

  void add(InPlaceMemory& memory) {
    const std::scoped_lock lock(mutex);
    const bool added = used.emplace(memory.data().data(), &memory).second;
    MINIRAY_CHECK(added);
  }

  InPlaceMemory* find(std::span<const std::byte> bytes) {
    const std::scoped_lock lock(mutex);
    auto next = used.upper_bound(bytes.data());
    if (next == used.begin()) return nullptr;
    InPlaceMemory* const before = std::prev(next)->second;
    const std::span<const std::byte> data = before->data();
    const auto offset = static_cast<std::size_t>(bytes.data() - data.data());
    return offset <= data.size() && bytes.size() <= data.size() - offset ? before : nullptr;
  }

  // Receivers may still use what the last reference here has left; the memory is used again when they do not.
  void put(std::unique_ptr<InPlaceMemory> memory) {
    std::vector<std::unique_ptr<InPlaceMemory>> dropped;  // destroyed without the lock
    const std::scoped_lock lock(mutex);
    used.erase(memory->data().data());
    const std::size_t bytes = memory->data().size();
    if (memory->inherited_ || bytes > limits::in_place_unused_bytes_max || memory->receiver_may_be_gone()) {
      dropped.push_back(std::move(memory));
      return;
    }
    unused_bytes += bytes;
    unused.push_back(std::move(memory));
    while (unused_bytes > limits::in_place_unused_bytes_max) {
      unused_bytes -= unused.front()->data().size();
      dropped.push_back(std::move(unused.front()));
      unused.erase(unused.begin());
    }
  }

  std::unique_ptr<InPlaceMemory> take(std::size_t bytes) {
    const std::scoped_lock lock(mutex);
    // The newest is most likely in the cache. Memory more than twice as large stays for a larger array.
    const auto found = std::find_if(unused.rbegin(), unused.rend(), [&](const auto& memory) {
      return memory->data().size() >= bytes && memory->data().size() / 2 <= bytes &&
             memory->head().users.load(std::memory_order_acquire) == 0;
    });
    if (found == unused.rend()) return nullptr;
    std::unique_ptr<InPlaceMemory> memory = std::move(*found);
    unused_bytes -= memory->data().size();
    unused.erase(std::next(found).base());
    memory->frozen_ = false;
    return memory;
  }

  void drop_lent() {
    std::vector<std::unique_ptr<InPlaceMemory>> dropped;  // destroyed without the lock
    const std::scoped_lock lock(mutex);
    for (std::unique_ptr<InPlaceMemory>& memory : unused) {
      if (memory->head().users.load(std::memory_order_acquire) == 0) continue;
      unused_bytes -= memory->data().size();
      dropped.push_back(std::move(memory));
    }
    std::erase(unused, nullptr);
  }

  void drop_received(InPlaceMemory* memory) {
    {
      const std::scoped_lock lock(mutex);
      used.erase(memory->data().data());
    }
    const std::unique_ptr<InPlaceMemory> ends_here(memory);
    system::Mapping head = std::move(*memory->head_);
    memory->data_.unmap();  // before the maker may write to it again
    reinterpret_cast<InPlaceHead*>(head.bytes().data())->users.fetch_sub(1, std::memory_order_release);
  }

  // After a fork, parent and child would share what the parent has made, although programs expect copies. So the child
  // gets a copy at the same address. What was received is private already; the child counts as one more user of it.
  void before_fork() {
    mutex.lock();
    for (const auto& [address, memory] : used) {
      if (memory->inherited_) continue;
      if (memory->made_here_)
        memory->data_.copy_for_child();
      else
        memory->head().users.fetch_add(1, std::memory_order_relaxed);
    }
  }
  void after_fork_in_parent() {
    for (const auto& [address, memory] : used) memory->data_.drop_child_copy();
    mutex.unlock();
  }
  void after_fork_in_child() {
    for (const auto& [address, memory] : used) {
      memory->data_.adopt_child_copy();
      memory->inherited_ = true;
      memory->frozen_ = false;
    }
    for (const auto& memory : unused) memory->data_.unmap();
    unused.clear();
    unused_bytes = 0;
    mutex.unlock();
  }
};

InPlaceMemory::InPlaceMemory(Fd memory, std::size_t file_bytes, bool made_here)
    : Passed(Kind::memory),
      memory_(std::move(memory)),
      made_here_(made_here),
      data_(memory_.get(), file_bytes,
            made_here ? system::Mapping::Kind::shared : system::Mapping::Kind::private_copy) {
  if (!made_here) head_.emplace(memory_.get(), in_place_head_bytes);
}

Buffer InPlaceMemory::buffer(std::shared_ptr<void> owner, std::uint64_t offset, std::uint64_t bytes) {
  return {std::move(owner), data().data() + offset, static_cast<std::size_t>(bytes), this};
}

Buffer InPlaceMemory::allocate(std::size_t bytes) {
  if (bytes < limits::in_place_bytes_min) return Buffer::allocate(bytes);
  InPlaceRegistry& all = InPlaceRegistry::get();
  std::unique_ptr<InPlaceMemory> memory = all.take(bytes);
  if (!memory) {
    system::require_room(bytes, "make an array");
    const std::size_t pages = (bytes + in_place_head_bytes - 1) / in_place_head_bytes;
    const std::size_t total = in_place_head_bytes * (1 + pages);
    Fd file = system::sealed_memory("miniray-array", total);
    if (!file.valid()) return Buffer::allocate(bytes);
    try {
      memory.reset(new InPlaceMemory(std::move(file), total, true));
    } catch (const SystemError&) {  // no room in the address space
      return Buffer::allocate(bytes);
    }
  }
  InPlaceMemory* const made = memory.get();
  all.add(*made);
  const auto put_back = [](InPlaceMemory* unused) {
    InPlaceRegistry::get().put(std::unique_ptr<InPlaceMemory>(unused));
  };
  return made->buffer(std::shared_ptr<InPlaceMemory>(memory.release(), put_back), 0, bytes);
}

Buffer InPlaceMemory::receive(Fd memory, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t file_bytes = memory.valid() ? system::sealed_memory_bytes(memory.get()) : 0;
  const std::uint64_t data_bytes = file_bytes > in_place_head_bytes ? file_bytes - in_place_head_bytes : 0;
  if (bytes == 0 || offset > data_bytes || bytes > data_bytes - offset)
    throw ProtocolError("the peer sent an array in memory that cannot be used (" + std::to_string(bytes) +
                        " bytes at " + std::to_string(offset) + ", of " + std::to_string(data_bytes) + ")");
  auto* const received = new InPlaceMemory(std::move(memory), file_bytes, false);
  InPlaceRegistry::get().add(*received);
  const auto drop = [](InPlaceMemory* unused) { InPlaceRegistry::get().drop_received(unused); };
  return received->buffer(std::shared_ptr<InPlaceMemory>(received, drop), offset, bytes);
}

InPlaceMemory* InPlaceMemory::find(std::span<const std::byte> bytes) {
  return bytes.size() < limits::in_place_bytes_min ? nullptr : InPlaceRegistry::get().find(bytes);
}

bool InPlaceMemory::receiver_may_be_gone() const {
  return head().users.load(std::memory_order_acquire) != 0 && lent_at_.load() != ended_channels.load();
}

void InPlaceMemory::on_channel_end() {
  ended_channels.fetch_add(1);
  if (InPlaceRegistry::exists.load()) InPlaceRegistry::get().drop_lent();
}

void InPlaceMemory::drop_unused() {
  InPlaceRegistry& all = InPlaceRegistry::get();
  std::vector<std::unique_ptr<InPlaceMemory>> dropped;  // destroyed without the lock
  const std::scoped_lock lock(all.mutex);
  dropped.swap(all.unused);
  all.unused_bytes = 0;
}

std::optional<InPlaceMemory::Lent> InPlaceMemory::lend(std::span<const std::byte> bytes) {
  const std::span<std::byte> all = data();
  MINIRAY_CHECK(bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size(), bytes.size());
  if (inherited_ || bytes.size() < limits::in_place_bytes_min) return {};
  if (!made_here_ && !system::is_unwritten(bytes)) return {};
  Fd copy = system::try_duplicate(memory_.get());
  if (!copy.valid()) return {};
  head().users.fetch_add(1, std::memory_order_relaxed);
  lent_at_ = ended_channels.load();
  if (made_here_) frozen_ = true;
  return Lent{std::move(copy), static_cast<std::uint64_t>(bytes.data() - all.data())};
}

}  // namespace miniray
