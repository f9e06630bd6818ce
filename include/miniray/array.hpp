// Arrays inside messages: a dtype, a shape, and contiguous bytes in C order. Copying an Array does not copy its bytes;
// both share one buffer.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

/// The type of an array's elements. The numbers are part of the wire format.
enum class DType : std::uint8_t {
  boolean = 0,
  int8 = 1,
  int16 = 2,
  int32 = 3,
  int64 = 4,
  uint8 = 5,
  uint16 = 6,
  uint32 = 7,
  uint64 = 8,
  float16 = 9,
  bfloat16 = 10,
  float32 = 11,
  float64 = 12,
  complex64 = 13,
  complex128 = 14,
};
inline constexpr std::uint8_t dtype_count = 15;

[[nodiscard]] std::size_t item_bytes(DType dtype);
[[nodiscard]] const char* name_of(DType dtype);  ///< "float64", as numpy and torch call it
/// Sets `dtype` to the one of that name. Returns false, and changes nothing, if there is none.
bool parse_dtype(std::string_view name, DType& dtype);

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_same_v<T, float>)
    return DType::float32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::float64;
  else if constexpr (std::is_same_v<T, std::complex<float>>)
    return DType::complex64;
  else if constexpr (std::is_same_v<T, std::complex<double>>)
    return DType::complex128;
  else {
    static_assert(std::is_integral_v<T>, "an array holds numbers");
    constexpr int log2_bytes = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<DType>((std::is_signed_v<T> ? 1 : 5) + log2_bytes);
  }
}

class Passed;  // for the library's own files: src/wire/passed.hpp

/// Bytes that travel beside a message's body. The owner keeps them alive; a buffer without an owner borrows its bytes,
/// which must then outlive it.
struct Buffer {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::size_t size = 0;
  Passed* passed = nullptr;  ///< set if the bytes can be sent without a copy; the owner keeps it alive

  [[nodiscard]] std::span<std::byte> bytes() const { return {data, size}; }
  /// Returns a buffer that owns new, uninitialised memory.
  static Buffer allocate(std::size_t size);
  /// Returns a buffer without an owner.
  static Buffer borrow(const void* data, std::size_t size) {
    return {nullptr, static_cast<std::byte*>(const_cast<void*>(data)), size};
  }
};

using Shape = std::vector<std::uint64_t>;

class Array {
 public:
  /// What the receiver gets in a language that has several: in Python a numpy array, a torch tensor or a list. An array
  /// of Form::descriptor has no elements; it stands for a descriptor, such as a channel's, that is sent with the
  /// message.
  enum class Form : std::uint8_t { array = 0, tensor = 1, list = 2, descriptor = 3 };

  Array() = default;
  /// Throws UsageError unless the buffer's size is what dtype and shape require.
  Array(DType dtype, Shape shape, Buffer buffer, Form form = Form::array);

  /// Takes over the vector's memory. Without a shape, the array is one-dimensional.
  template <class T>
  static Array of(std::vector<T> numbers, Shape shape = {}) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> is not contiguous; use std::vector<std::uint8_t>");
    if (shape.empty()) shape = {numbers.size()};
    auto owner = std::make_shared<std::vector<T>>(std::move(numbers));
    auto* data = reinterpret_cast<std::byte*>(owner->data());
    const std::size_t size = owner->size() * sizeof(T);
    return {dtype_of<T>(), std::move(shape), Buffer{std::move(owner), data, size}};
  }
  /// Borrows the memory, which must stay unchanged until the send that uses it has returned.
  template <class T>
  static Array view(std::span<const T> numbers, Shape shape = {}) {
    if (shape.empty()) shape = {numbers.size()};
    return {dtype_of<T>(), std::move(shape), Buffer::borrow(numbers.data(), numbers.size_bytes())};
  }
  template <class T>
  static Array zeros(Shape shape) {
    std::vector<T> numbers(element_count(shape));
    return of(std::move(numbers), std::move(shape));
  }

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] Form form() const { return form_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::size_t size() const { return buffer_.size / item_bytes(dtype_); }
  [[nodiscard]] const Buffer& buffer() const { return buffer_; }

  /// Returns the elements in C order, without copying them. Throws ValueError if they are not of type T, and UsageError
  /// if T is not const and the array was made by make_array() and has been sent.
  template <class T>
  [[nodiscard]] std::span<T> elements() const {
    require_dtype(dtype_of<std::remove_const_t<T>>());
    if constexpr (!std::is_const_v<T>) require_writable();
    return {reinterpret_cast<T*>(buffer_.data), size()};
  }

  /// Returns the product of the dimensions. Throws UsageError if it does not fit into 64 bits.
  static std::uint64_t element_count(const Shape& shape);
  /// Compares dtype, shape and bytes, but not the form.
  friend bool operator==(const Array& a, const Array& b);

 private:
  void require_dtype(DType wanted) const;
  void require_writable() const {
    if (buffer_.passed != nullptr) require_not_sent();
  }
  void require_not_sent() const;

  DType dtype_ = DType::float64;
  Form form_ = Form::array;
  Shape shape_{0};
  Buffer buffer_;
};

/// Returns an array of uninitialised elements, in memory that is sent to processes of this machine without a copy, and
/// to other machines as any array is. Sending such an array freezes it: the sender may read it and send it again, but
/// elements<T>() then throws UsageError unless T is const. A span from before the send must not be written through
/// either, because receivers would see that. The memory is used again when no process uses it any more.
[[nodiscard]] Array make_array(DType dtype, Shape shape);
template <class T>
[[nodiscard]] Array make_array(Shape shape) {
  return make_array(dtype_of<T>(), std::move(shape));
}

}  // namespace miniray
