// Encodes Python objects directly into a message, without a Value in between.
#pragma once

#include <memory>
#include <vector>

#include "interop.hpp"
#include "miniray/message.hpp"
#include "wire/in_place_memory.hpp"

namespace miniray::python {

/// Finds the dtype for the format of a buffer. Returns false if there is none. `swapped`: the bytes of each element are
/// in the other order.
bool parse_format(const Py_buffer& view, DType& dtype, bool& swapped);

/// Where EncodedObject::exactly() looks for an object that occurs twice. A message would turn it into two objects.
enum class Sharing : std::uint8_t {
  anywhere,      ///< in the whole object
  within_items,  ///< in each element of the inner list of a list; two elements may have the same object
  ignored,       ///< nowhere: it may become two objects
};

/// A message, and references to the objects whose memory its buffers borrow. Create and destroy it with the GIL held.
class EncodedObject {
 public:
  /// Encodes an object. Raises TypeError or OverflowError, which name the place, if a part of it cannot be sent.
  EncodedObject(nb::handle object, Codec codec);
  /// Encodes an object. Returns nullptr if it would arrive as something else: a tuple as a list, an object of a
  /// subclass as one of its base class, or one list as two.
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
  /// Returns a message that owns its memory, so that it can be sent later.
  [[nodiscard]] Message detach() &&;
  [[nodiscard]] std::vector<Buffer>& buffers() { return message_.buffers; }
  /// Takes ownership of a view. Returns a buffer that borrows its memory until this object is destroyed.
  Buffer borrow(const Py_buffer& view);
  /// Like borrow(). If the memory was made in place, it is sent without a copy. If it was made in this process, the
  /// object is made read-only once it has been sent.
  Buffer borrow_array(const Py_buffer& view, PyObject* object);
  Buffer borrow_tensor(const Py_buffer& view);
  /// Takes the end out of a miniray.Channel. It gets the end back if the message is not sent.
  std::shared_ptr<PassedDescriptor> take_channel(nb::handle channel);

 private:
  EncodedObject() = default;
  void release_views();

  Message message_;
  std::vector<Py_buffer> views_;
  std::vector<std::pair<nb::object, InPlaceMemory*>> in_place_;
  std::vector<std::pair<nb::object, std::shared_ptr<PassedDescriptor>>> channels_;
};

}  // namespace miniray::python
