#include "miniray/array.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "base/check.hpp"
#include "miniray/error.hpp"
#include "wire/in_place_memory.hpp"

namespace miniray {
namespace {

struct DTypeInfo {
  const char* name;
  std::size_t bytes;
};
constexpr std::array<DTypeInfo, dtype_count> dtypes{{{"bool", 1},
                                                     {"int8", 1},
                                                     {"int16", 2},
                                                     {"int32", 4},
                                                     {"int64", 8},
                                                     {"uint8", 1},
                                                     {"uint16", 2},
                                                     {"uint32", 4},
                                                     {"uint64", 8},
                                                     {"float16", 2},
                                                     {"bfloat16", 2},
                                                     {"float32", 4},
                                                     {"float64", 8},
                                                     {"complex64", 8},
                                                     {"complex128", 16}}};

const DTypeInfo& info(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  MINIRAY_CHECK(index < dtypes.size(), index);
  return dtypes[index];
}

}  // namespace

std::size_t item_bytes(DType dtype) { return info(dtype).bytes; }
const char* name_of(DType dtype) { return info(dtype).name; }

bool parse_dtype(std::string_view name, DType& dtype) {
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    if (name != dtypes[i].name) continue;
    dtype = static_cast<DType>(i);
    return true;
  }
  return false;
}

Buffer Buffer::allocate(std::size_t size) {
  constexpr std::size_t alignment = 64;  // a cache line, and the widest vector register
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size > 0 ? size : 1) != 0) throw std::bad_alloc();
  return {std::shared_ptr<void>(memory, &std::free), static_cast<std::byte*>(memory), size};
}

std::uint64_t Array::element_count(const Shape& shape) {
  std::uint64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (const std::uint64_t extent : shape) {
    empty = empty || extent == 0;  // the loop goes on: a zero makes any overflow harmless
    overflow = overflow || __builtin_mul_overflow(count, extent, &count);
  }
  if (empty) return 0;
  if (overflow) throw UsageError("the array's shape has more elements than 64 bits can count; give a smaller shape");
  return count;
}

Array::Array(DType dtype, Shape shape, Buffer buffer, Form form)
    : dtype_(dtype), form_(form), shape_(std::move(shape)), buffer_(std::move(buffer)) {
  const std::uint64_t count = element_count(shape_);
  std::uint64_t bytes = 0;
  const bool overflow = __builtin_mul_overflow(count, item_bytes(dtype), &bytes);
  if (overflow || bytes != buffer_.size)
    throw UsageError("the array's buffer has " + std::to_string(buffer_.size) + " bytes, but " + std::to_string(count) +
                     " elements of " + name_of(dtype) + " need " +
                     (overflow ? "more than 64 bits can count" : std::to_string(bytes)));
}

void Array::require_dtype(DType wanted) const {
  if (dtype_ != wanted)
    throw ValueError(std::string("the array holds ") + name_of(dtype_) + ", not " + name_of(wanted));
}

void Array::require_not_sent() const {
  if (buffer_.passed->kind() == Passed::Kind::memory && static_cast<InPlaceMemory*>(buffer_.passed)->frozen())
    throw UsageError(
        "cannot write to an array of make_array() that was sent: the receiver uses the same memory. Read it with "
        "elements(), or make another array for the next message");
}

Array make_array(DType dtype, Shape shape) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(Array::element_count(shape), item_bytes(dtype), &bytes))
    throw UsageError("the array's shape has more bytes than 64 bits can count; give a smaller shape");
  return {dtype, std::move(shape), InPlaceMemory::allocate(bytes)};
}

// Another thread may have dropped its copy of the array just now. The fence orders its reads before our writes.
void Array::make_writable() {
  const long users = buffer_.owner.use_count();
#ifndef __SANITIZE_THREAD__  // which does not know fences
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  if (!buffer_.read_only && users <= 1) return;
  Buffer copy = Buffer::allocate(buffer_.size);
  if (buffer_.size > 0) std::memcpy(copy.data, buffer_.data, buffer_.size);
  buffer_ = std::move(copy);
}

bool operator==(const Array& a, const Array& b) {
  return a.dtype_ == b.dtype_ && a.shape_ == b.shape_ && a.buffer_.size == b.buffer_.size &&
         (a.buffer_.size == 0 || std::memcmp(a.buffer_.data, b.buffer_.data, a.buffer_.size) == 0);
}

}  // namespace miniray
