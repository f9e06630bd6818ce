// miniray.Channel: sends and receives messages over any connected stream socket.
#include "miniray/channel.hpp"

#include <unistd.h>

#include "conversation.hpp"

namespace miniray::python {

void bind_channel(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Channel> channel(module, "Channel", nb::dynamic_attr(), nb::is_weak_referenceable(),
                              "Messages over a connected stream socket, Unix-domain or TCP. Workers and handles are "
                              "channels with a process at the other end.");
  channel.def(
      "__init__",
      [](Channel* self, int socket, const std::string& codec, std::string peer, bool shared_memory,
         std::optional<int> spin_us, std::uint64_t inbox_bytes_max, std::uint64_t message_bytes_max) {
        ChannelOptions options;
        options.peer = std::move(peer);
        options.codec = parse_codec(codec);
        options.shared_memory = shared_memory;
        options.spin_us = spin_us;
        options.inbox_bytes_max = inbox_bytes_max;
        options.message_bytes_max = message_bytes_max;
        options.on_interrupt = check_signals;
        new (self) Channel(socket, std::move(options));
      },
      "socket"_a, "codec"_a = "msgpack", "peer"_a = "peer", "shared_memory"_a = true, "spin_us"_a = nb::none(),
      "inbox_bytes_max"_a = limits::inbox_bytes_max, "message_bytes_max"_a = limits::message_bytes_max,
      "Takes ownership of a descriptor: pass sock.detach(). `peer` is the name of the other side in errors.");
  bind_conversation(channel);
  channel
      .def_static(
          "pair",
          [](const std::string& codec) {
            ChannelOptions options;
            options.codec = parse_codec(codec);
            options.on_interrupt = check_signals;
            auto [here, there] = Channel::pair(options);
            return nb::make_tuple(nb::cast(std::move(here)), nb::cast(std::move(there)));
          },
          nb::kw_only(), "codec"_a = "msgpack",
          nb::sig("def pair(*, codec: str = 'msgpack') -> tuple[Channel, Channel]"),
          "Return the two ends of a new channel. Each end can be sent, once and unused, inside a message to a worker "
          "of "
          "this machine, so that two workers talk to each other. The send closes the end here.")
      .def("close", &Channel::close,
           "Close the channel: the other side sees the end of the stream after the last message.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](Channel& self, nb::args) { self.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace miniray::python
