#include "base/page_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace miniray::system {
namespace {

constexpr std::size_t page_memory_step = 4096;

}  // namespace

PageMemory::~PageMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void PageMemory::grow(std::size_t bytes) {
  if (bytes <= bytes_) return;
  if (bytes > SIZE_MAX - page_memory_step) throw std::bad_alloc();
  const std::size_t rounded = (bytes + page_memory_step - 1) / page_memory_step * page_memory_step;
  void* const grown = data_ == nullptr
                          ? mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                          : mremap(data_, bytes_, rounded, MREMAP_MAYMOVE);
  if (grown == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(grown);
  bytes_ = rounded;
}

}  // namespace miniray::system
