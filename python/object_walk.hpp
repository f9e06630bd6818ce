// Turns Python objects into events, and so into a message, without a tree in between.
#pragma once

#include "interop.hpp"
#include "miniray/message.hpp"

namespace miniray::python {

/// A message, and the objects whose memory its buffers borrow.
class EncodedObject {
 public:
  /// Raises TypeError or OverflowError, naming the place, if it cannot be sent.
  EncodedObject(nb::handle object, Codec codec);
  EncodedObject(const EncodedObject&) = delete;
  EncodedObject& operator=(const EncodedObject&) = delete;
  ~EncodedObject();

  [[nodiscard]] const Message& message() const { return message_; }
  /// A buffer over the object's memory, which stays as it is until this is destroyed.
  Buffer borrow(const Py_buffer& view);

 private:
  Message message_;
  std::vector<Py_buffer> views_;
};

}  // namespace miniray::python
