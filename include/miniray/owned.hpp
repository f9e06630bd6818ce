// The inside of an object that can be moved.
#pragma once

#include <memory>
#include <utility>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

/// Throws UsageError, which says that an object of this class was moved from.
[[noreturn]] void throw_moved_from(const char* class_name);

/// A unique_ptr that throws UsageError instead of dereferencing null. T has a constant `class_name`, for the text.
template <class T>
class Owned {
 public:
  Owned() = default;
  Owned(std::unique_ptr<T> object) : object_(std::move(object)) {}

  [[nodiscard]] T* operator->() const { return &**this; }
  [[nodiscard]] T& operator*() const {
    if (!object_) throw_moved_from(T::class_name);
    return *object_;
  }
  [[nodiscard]] explicit operator bool() const { return object_ != nullptr; }

 private:
  std::unique_ptr<T> object_;
};

}  // namespace miniray
