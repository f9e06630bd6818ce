// Anonymous memory that grows without copying: the kernel moves its pages. A page takes memory when it is first
// written.
#pragma once

#include <cstddef>
#include <utility>

namespace miniray::system {

class PageMemory {
 public:
  PageMemory() = default;
  PageMemory(PageMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PageMemory& operator=(PageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory();

  /// Makes room for at least this many bytes. What is there stays, and may move to another address. Throws
  /// std::bad_alloc, and changes nothing, if the system does not give the memory.
  void grow(std::size_t bytes);
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace miniray::system
