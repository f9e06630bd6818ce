// Arrays inside messages: a dtype, a shape, and contiguous bytes in C order. An Array behaves like a value: copies
// share one buffer until one of them is written to, and then that one gets a buffer of its own.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/export.hpp"

// Lets a compiler that knows the attribute warn when a result outlives the object that it refers to.
#if defined(__has_cpp_attribute)
#if __has_cpp_attribute(clang::lifetimebound)
#define MINIRAY_LIFETIMEBOUND [[clang::lifetimebound]]
#endif
#endif
#ifndef MINIRAY_LIFETIMEBOUND
#define MINIRAY_LIFETIMEBOUND
#endif

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

/// A complex number of two floats or two doubles: std::complex, or a type of another library with the same layout.
template <class T>
concept ComplexNumber = requires(const T& number) {
  typename T::value_type;
  { number.real() } -> std::convertible_to<typename T::value_type>;
  { number.imag() } -> std::convertible_to<typename T::value_type>;
  requires std::same_as<typename T::value_type, float> || std::same_as<typename T::value_type, double>;
  requires sizeof(T) == 2 * sizeof(typename T::value_type) && std::is_trivially_copyable_v<T>;
};
/// The types of which an array consists.
template <class T>
concept ArrayElement =
    !std::is_const_v<T> && (std::integral<T> || std::same_as<T, float> || std::same_as<T, double> || ComplexNumber<T>);

template <class T>
constexpr DType dtype_of() {
  static_assert(ArrayElement<T>, "an array holds integers, float, double, bool, or complex numbers of float or double");
  if constexpr (std::is_same_v<T, bool>) {
    return DType::boolean;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::float32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::float64;
  } else if constexpr (ComplexNumber<T>) {
    return sizeof(T) == 8 ? DType::complex64 : DType::complex128;
  } else {
    constexpr int log2_bytes = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<DType>((std::is_signed_v<T> ? 1 : 5) + log2_bytes);
  }
}

class Passed;  // for the library's own files: src/wire/passed.hpp

/// Bytes that travel beside a message's body. The owner keeps them alive; a buffer without an owner borrows its bytes,
/// which must then outlive it. It is one rung below Array, for the library's own files and for language bindings: it is
/// a pointer and a size, so its const does not protect the bytes, and a moved-from buffer keeps both but owns nothing.
struct Buffer {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::size_t size = 0;
  Passed* passed = nullptr;  ///< set if the bytes can be sent without a copy; the owner keeps it alive
  bool read_only = false;    ///< the bytes were borrowed as const, and nobody may write to them through this buffer

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data, size}; }
  [[nodiscard]] std::span<std::byte> bytes() { return {data, size}; }
  /// Returns a buffer that owns new, uninitialised memory.
  static Buffer allocate(std::size_t size);
  /// Returns a read-only buffer without an owner.
  static Buffer borrow(const void* data, std::size_t size) {
    return {nullptr, static_cast<std::byte*>(const_cast<void*>(data)), size, nullptr, true};
  }
};

using Shape = std::vector<std::uint64_t>;

template <class T>
class ArrayElements;

class Array {
 public:
  /// What the receiver gets in a language that has several: in Python a numpy array, a torch tensor or a list. An array
  /// of Form::descriptor has no elements; it stands for a descriptor, such as a channel's, that is sent with the
  /// message.
  enum class Form : std::uint8_t { array = 0, tensor = 1, list = 2, descriptor = 3 };

  Array() = default;
  Array(const Array&) = default;
  /// A moved-from array is empty: it has one dimension and no elements, and keeps no memory.
  Array(Array&& other) noexcept
      : dtype_(other.dtype_),
        form_(std::exchange(other.form_, Form::array)),
        shape_(std::exchange(other.shape_, Shape{0})),
        buffer_(std::exchange(other.buffer_, Buffer{})) {}
  Array& operator=(const Array&) = default;
  Array& operator=(Array&& other) noexcept {
    Array taken(std::move(other));  // so that an array can be assigned to itself
    std::swap(dtype_, taken.dtype_);
    std::swap(form_, taken.form_);
    shape_.swap(taken.shape_);
    std::swap(buffer_, taken.buffer_);
    return *this;
  }
  ~Array() = default;
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
  /// Borrows the memory, which must stay unchanged until the send that uses it has returned. The array never writes to
  /// it: mutable_elements() makes a copy first.
  template <class T>
  static Array view(std::span<const T> numbers, Shape shape = {}) {
    if (shape.empty()) shape = {numbers.size()};
    return {dtype_of<T>(), std::move(shape), Buffer::borrow(numbers.data(), numbers.size_bytes())};
  }
  /// Borrows memory that mutable_elements() may write to, for all copies of the array. The memory must outlive them.
  template <class T>
    requires(!std::is_const_v<T>)
  static Array mutable_view(std::span<T> numbers, Shape shape = {}) {
    if (shape.empty()) shape = {numbers.size()};
    return {dtype_of<T>(), std::move(shape),
            Buffer{nullptr, reinterpret_cast<std::byte*>(numbers.data()), numbers.size_bytes()}};
  }
  template <class T>
  static Array zeros(Shape shape) {
    std::vector<T> numbers(element_count(shape));
    return of(std::move(numbers), std::move(shape));
  }

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] Form form() const { return form_; }
  [[nodiscard]] const Shape& shape() const& MINIRAY_LIFETIMEBOUND { return shape_; }
  [[nodiscard]] Shape shape() const&& { return shape_; }
  [[nodiscard]] std::size_t size() const { return buffer_.size / item_bytes(dtype_); }
  /// Returns the array's memory, for the library's own files and for language bindings. Programs use elements(), and
  /// mutable_elements() to write: writing through a Buffer changes all copies of the array, also those that other
  /// processes read, and const does not prevent it.
  [[nodiscard]] const Buffer& buffer() const& MINIRAY_LIFETIMEBOUND { return buffer_; }
  [[nodiscard]] Buffer buffer() && {
    Array taken(std::move(*this));
    return std::move(taken.buffer_);
  }
  [[nodiscard]] Buffer buffer() const&& { return buffer_; }

  /// Returns the elements in C order, without copying them. They are valid for as long as this array, or a copy of it,
  /// lives and is not written to. Throws ValueError if they are not of type T; a const T is the same as T.
  template <class T>
  [[nodiscard]] std::span<const T> elements() const& MINIRAY_LIFETIMEBOUND {
    require_dtype(dtype_of<std::remove_const_t<T>>());
    return {reinterpret_cast<const T*>(buffer_.data), size()};
  }
  /// Returns the elements of an array that is about to be destroyed. The result keeps their memory alive.
  template <class T>
  [[nodiscard]] ArrayElements<std::remove_const_t<T>> elements() && {
    return ArrayElements<std::remove_const_t<T>>(std::move(*this));
  }
  template <class T>
  [[nodiscard]] ArrayElements<std::remove_const_t<T>> elements() const&& {
    return ArrayElements<std::remove_const_t<T>>(*this);
  }
  /// Returns the elements for writing. If the array shares its memory with another one, or borrows it from view(), it
  /// gets a copy of its own first. So no other Array ever sees the change, except through mutable_view(). Throws as
  /// elements() does.
  template <class T>
      [[nodiscard]] std::span<T> mutable_elements() & MINIRAY_LIFETIMEBOUND {
    require_dtype(dtype_of<T>());
    require_writable();
    make_writable();
    return {reinterpret_cast<T*>(buffer_.data), size()};
  }

  /// Returns the bytes of the elements for writing, as mutable_elements() does.
  [[nodiscard]] std::span<std::byte> mutable_bytes() & MINIRAY_LIFETIMEBOUND {
    require_writable();
    make_writable();
    return buffer_.bytes();
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
  void make_writable();

  DType dtype_ = DType::float64;
  Form form_ = Form::array;
  Shape shape_{0};
  Buffer buffer_;
};

/// Returns an array of uninitialised elements, in memory that is sent to processes of this machine without a copy, and
/// to other machines as any array is. Sending such an array freezes it: the sender may read it and send it again, but
/// mutable_elements() then throws UsageError. A span from before the send must not be written through
/// either, because receivers would see that. The memory is used again when no process uses it any more. An array of
/// less than limits::in_place_bytes_min (256 KiB) is ordinary: each send copies it, and it stays writable. Throws
/// SystemError, and takes no memory, if the machine does not have so much.
[[nodiscard]] Array make_array(DType dtype, Shape shape);
template <class T>
[[nodiscard]] Array make_array(Shape shape) {
  return make_array(dtype_of<T>(), std::move(shape));
}

/// The elements of an array that had no name, as in `auto numbers = worker.recv()["a"].array<double>();`. It shares the
/// array's memory, so it stays valid. It converts to a std::span, but only once it has a name itself.
template <class T>
class ArrayElements {
 public:
  // Two reversals make an iterator that is not contiguous. A contiguous one would let std::span take a temporary.
  using iterator = std::reverse_iterator<std::reverse_iterator<const T*>>;
  using value_type = T;

  /// Throws ValueError if the array's elements are not of type T.
  explicit ArrayElements(Array array) : array_(std::move(array)), elements_(array_.elements<T>()) {}
  ArrayElements(const ArrayElements&) = default;
  ArrayElements(ArrayElements&& other) noexcept
      : array_(std::move(other.array_)), elements_(std::exchange(other.elements_, {})) {}
  ArrayElements& operator=(const ArrayElements&) = default;
  ArrayElements& operator=(ArrayElements&& other) noexcept {
    array_ = std::move(other.array_);
    elements_ = array_.template elements<T>();
    if (this != &other) other.elements_ = {};
    return *this;
  }
  ~ArrayElements() = default;

  [[nodiscard]] std::size_t size() const { return elements_.size(); }
  [[nodiscard]] bool empty() const { return elements_.empty(); }
  [[nodiscard]] T operator[](std::size_t index) const { return elements_[index]; }
  [[nodiscard]] T front() const { return elements_.front(); }
  [[nodiscard]] T back() const { return elements_.back(); }
  [[nodiscard]] const T* data() const& MINIRAY_LIFETIMEBOUND { return elements_.data(); }
  [[nodiscard]] iterator begin() const& MINIRAY_LIFETIMEBOUND { return at(elements_.data()); }
  [[nodiscard]] iterator end() const& MINIRAY_LIFETIMEBOUND { return at(elements_.data() + elements_.size()); }
  [[nodiscard]] std::span<const T> span() const& MINIRAY_LIFETIMEBOUND { return elements_; }
  operator std::span<const T>() const& MINIRAY_LIFETIMEBOUND { return elements_; }
  // Deleted, because the results would refer to memory that is gone: give the message or the elements a name first. A
  // range-for over elements without a name works.
  const T* data() const&& = delete;
  iterator begin() const&& = delete;
  iterator end() const&& = delete;
  std::span<const T> span() const&& = delete;
  operator std::span<const T>() const&& = delete;

 private:
  static iterator at(const T* place) { return iterator(std::reverse_iterator<const T*>(place)); }

  Array array_;
  std::span<const T> elements_;
};

}  // namespace miniray
