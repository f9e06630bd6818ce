#include "miniray/handle.hpp"

#include "base/clock.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// Answers a call in a worker without a call server, which is in a layer above this one.
void refuse(Handle& handle, const Message& call) {
  const Value text{{"type", "UsageError"},
                   {"message",
                    "this worker answers no calls: have its work function call miniray::answer_calls(handle) "
                    "first, or run miniray::serve_calls"},
                   {"traceback", ""}};
  if (call.head.number == 0) return;
  Message reply = encode(text);
  reply.kind = Message::Kind::reply;
  reply.head = {call.head.number, 0, static_cast<std::uint8_t>(ReplyVerb::error)};
  handle.send(reply);
}

}  // namespace

void Handle::answer(Message call) {
  if (call_server_)
    call_server_(*this, std::move(call));
  else
    refuse(*this, call);
}

Message Handle::receive(const ReceiveOptions& options) {
  ReceiveOptions left = options;
  left.lane = Lane::any;  // calls are answered in the order of arrival, together with messages
  const Deadline deadline = Deadline::in_seconds(options.timeout_s);
  while (true) {
    std::optional<Message> ready;
    while (background_ && !(ready = channel_.try_receive(options.max_size, Lane::any))) {
      if (!background_(*this, deadline.seconds_left())) background_ = nullptr;
      if (options.timeout_s) left.timeout_s = deadline.seconds_left();
    }
    Message message = ready ? std::move(*ready) : channel_.receive(left);
    if (message.kind == Message::Kind::message) return message;
    answer(std::move(message));
    if (options.timeout_s) left.timeout_s = deadline.seconds_left();
  }
}

std::optional<Message> Handle::try_receive(std::optional<std::uint64_t> max_size) {
  while (true) {
    std::optional<Message> message = channel_.try_receive(max_size, Lane::any);
    if (!message || message->kind == Message::Kind::message) return message;
    answer(std::move(*message));
  }
}

}  // namespace miniray
