// A part of a message that is passed as a descriptor between two processes of one machine: memory that was made in
// place, or another descriptor, such as the end of a channel. A Buffer refers to it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/fd.hpp"
#include "miniray/array.hpp"

namespace miniray {

class Passed {
 public:
  enum class Kind : std::uint8_t { memory, descriptor };
  Passed(const Passed&) = delete;
  Passed& operator=(const Passed&) = delete;
  [[nodiscard]] Kind kind() const { return kind_; }

 protected:
  explicit Passed(Kind kind) : kind_(kind) {}
  ~Passed() = default;

 private:
  Kind kind_;
};

/// A descriptor inside a message. It is sent once: the sender's copy is closed when the message is on its way.
class PassedDescriptor : public Passed {
 public:
  explicit PassedDescriptor(Fd given) : Passed(Kind::descriptor), descriptor(std::move(given)) {}
  Fd descriptor;

  /// Returns the part of a value that stands for this descriptor: an array of Form::descriptor without elements.
  [[nodiscard]] static Array as_array(std::shared_ptr<PassedDescriptor> passed) {
    Passed* const base = passed.get();
    return {DType::uint8, {0}, Buffer{std::move(passed), nullptr, 0, base}, Array::Form::descriptor};
  }
  /// Returns the descriptor in an array of Form::descriptor; nullptr for any other array.
  [[nodiscard]] static PassedDescriptor* in(const Buffer& buffer) {
    return buffer.passed != nullptr && buffer.passed->kind() == Kind::descriptor
               ? static_cast<PassedDescriptor*>(buffer.passed)
               : nullptr;
  }
};

}  // namespace miniray
