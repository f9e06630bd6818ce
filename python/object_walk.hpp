// Turns Python objects into events, and so into a message, without a tree in between.
#pragma once

#include <memory>
#include <vector>

#include "interop.hpp"
#include "miniray/message.hpp"

namespace miniray::python {

/// Whether one object may be in two places of what is sent: messages would make two of it.
enum class Sharing : std::uint8_t {
  anywhere,      ///< it has to stay one
  within_items,  ///< the same, but between the elements of a list in the list
};

/// A message, and the objects whose memory its buffers borrow.
class EncodedObject {
 public:
  /// Raises TypeError or OverflowError, naming the place, if it cannot be sent.
  EncodedObject(nb::handle object, Codec codec);
  /// Nothing if it would arrive as something else: a tuple as a list, an object of a subclass as one of its base, one
  /// list as two.
  [[nodiscard]] static std::unique_ptr<EncodedObject> exactly(nb::handle object, Sharing sharing);
  EncodedObject(const EncodedObject&) = delete;
  EncodedObject& operator=(const EncodedObject&) = delete;
  ~EncodedObject();

  [[nodiscard]] const Message& message() const { return message_; }
  [[nodiscard]] Message& message() { return message_; }
  void set_kind(Message::Kind kind, const CallHead& head) {
    message_.kind = kind;
    message_.head = head;
  }
  /// A message that owns its memory, for one that waits.
  [[nodiscard]] Message detach() &&;
  [[nodiscard]] std::vector<Buffer>& buffers() { return message_.buffers; }
  /// A buffer over the object's memory, which stays as it is until this is destroyed.
  Buffer borrow(const Py_buffer& view);

 private:
  EncodedObject() = default;
  void release();

  Message message_;
  std::vector<Py_buffer> views_;
};

}  // namespace miniray::python
