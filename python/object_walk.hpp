// Turns Python objects into events, and so into a message, without a tree in between.
#pragma once

#include <memory>
#include <vector>

#include "interop.hpp"
#include "miniray/message.hpp"

namespace miniray::python {

/// A message, and the objects whose memory its buffers borrow.
class EncodedObject {
 public:
  /// Raises TypeError or OverflowError, naming the place, if it cannot be sent.
  EncodedObject(nb::handle object, Codec codec);
  /// Nothing if it would arrive as something else: a tuple as a list, an object of a subclass as one of its base.
  [[nodiscard]] static std::unique_ptr<EncodedObject> exactly(nb::handle object);
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
