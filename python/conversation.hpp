// Binds the calls that a channel, a handle and a worker have in common.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "interop.hpp"
#include "miniray/channel.hpp"
#include "miniray/group.hpp"
#include "miniray/handle.hpp"
#include "miniray/worker.hpp"
#include "object_builder.hpp"
#include "object_walk.hpp"

namespace miniray::python {

template <class T>
void send(T& self, nb::handle message) {
  const EncodedObject encoded(message, self.codec());
  const nb::gil_scoped_release released;
  self.send(encoded.message());
}

template <class T>
bool send_some(T& self, nb::handle message) {
  const EncodedObject encoded(message, self.codec());
  return self.send_some(encoded.message());
}

// A signal handler may raise an exception while the message is decoded. The message is then put back, and is not lost.
template <class T>
nb::object decode_or_put_back(T& self, Message message) {
  if (std::is_same_v<T, Handle> && is_invitation(message)) {
    self.put_back(std::move(message));
    throw UsageError(
        "the next message is an invitation to a group, which recv() does not return: the coordinator has called "
        "create_group(). Call miniray.Group(handle) to join; the invitation is kept for it");
  }
  try {
    return decode_object(message);
  } catch (const nb::python_error&) {
    self.put_back(std::move(message));
    throw;
  }
}

template <class T>
nb::object recv(T& self, std::optional<std::uint64_t> max_size, std::optional<double> timeout) {
  std::optional<Message> message;
  {
    const nb::gil_scoped_release released;
    message = self.receive({max_size, timeout});
  }
  return decode_or_put_back(self, std::move(*message));
}

template <class T>
nb::tuple recv_some(T& self, std::optional<std::uint64_t> max_size) {
  std::optional<Message> message = self.try_receive(max_size);
  if (!message) return nb::make_tuple(false, nb::none());
  return nb::make_tuple(true, decode_or_put_back(self, std::move(*message)));
}

template <class T>
nb::object recv_large(T& self) {
  nb::object message = recv(self, {}, {});
  if (!nb::isinstance<nb::bytes>(message))
    throw UsageError("recv_large expected bytes, but the message is something else; use recv()");
  return message;
}

template <class T>
void bind_conversation(nb::class_<T>& type) {
  using namespace nb::literals;
  type.def("send", send<T>, "message"_a.none(), nb::sig("def send(self, message: object) -> None"),
           "Send a message: dict, list, tuple, str, int, float, bool, None, bytes, numpy arrays and torch CPU tensors, "
           "nested in any way. Returns when the message may be changed again. Raises TypeError, which names the place, "
           "if a part of it cannot be sent.")
      .def("recv", recv<T>, nb::kw_only(), "max_size"_a = nb::none(), "timeout"_a = nb::none(),
           nb::sig("def recv(self, *, max_size: int | None = None, timeout: float | None = None) -> typing.Any"),
           "Wait for the next message and return it. Raises TimeoutError after `timeout` seconds, and MessageTooLarge "
           "if the next message has more than `max_size` bytes; in both cases recv can be called again, and no message "
           "is lost.")
      .def("send_large", send<T>, "data"_a,
           nb::sig("def send_large(self, data: bytes | bytearray | memoryview) -> None"),
           "Send bytes. It does the same as send(), which also sends large buffers through shared memory.")
      .def("recv_large", recv_large<T>, nb::sig("def recv_large(self) -> bytes"),
           "Wait for a message of bytes and return it. Raises UsageError if the message is something else.")
      .def(
          "send_async",
          [](nb::handle self, nb::handle message) { return attribute("miniray._async", "send")(self, message); },
          "message"_a.none(),
          nb::sig("def send_async(self, message: object) -> collections.abc.Coroutine[typing.Any, typing.Any, None]"),
          "send() for asyncio.")
      .def(
          "recv_async",
          [](nb::handle self, nb::handle max_size, nb::handle timeout) {
            return attribute("miniray._async", "recv")(self, max_size, timeout);
          },
          nb::kw_only(), "max_size"_a = nb::none(), "timeout"_a = nb::none(),
          nb::sig("def recv_async(self, *, max_size: int | None = None, timeout: float | None = None) -> "
                  "collections.abc.Coroutine[typing.Any, typing.Any, typing.Any]"),
          "recv() for asyncio. A cancelled call loses no message.")
      .def(
          "fileno", [](T& self) { return self.fileno(); },
          "Return a descriptor for select and the like: it is readable when recv() may have a message. A message may "
          "also be in the inbox already, which the descriptor does not show; wait_any() looks at both.")
      .def_prop_ro(
          "codec", [](T& self) { return name_of(self.codec()); },
          "The codec of sent messages: \"msgpack\" or \"json\".")
      .def_prop_ro(
          "ended", [](T& self) { return self.ended(); },
          "True if the other side will send no more messages than those in the inbox.")
      // For miniray._async.
      .def("_send_some", send_some<T>, "message"_a.none())
      .def("_recv_some", recv_some<T>, "max_size"_a.none(),
           nb::sig("def _recv_some(self, max_size: int | None) -> tuple[bool, typing.Any]"))
      .def("_has_unsent", [](T& self) { return self.has_unsent(); })
      .def("_flush_some", [](T& self) { return self.flush_some(); })
      .def("_look_around", [](T& self) { self.look_around(); })
      .def("_pump", [](T& self) { self.pump(); });
}

}  // namespace miniray::python
