#include "calls/call_server.hpp"

#include "base/check.hpp"
#include "base/clock.hpp"
#include "miniray/error.hpp"

namespace miniray {

OwedReply::OwedReply(Channel& channel, std::int64_t number)
    : channel_(&channel), number_(number), begun_ns_(now_ns()) {}

void OwedReply::send(Message& reply) const {
  if (!is_wanted()) return;
  MINIRAY_CHECK(reply.kind == Message::Kind::reply, reply.kind, number_);
  reply.head.number = number_;
  reply.head.time_ns = now_ns() - begun_ns_;
  MINIRAY_CHECK(reply.head.time_ns >= 0, reply.head.time_ns, number_);  // the clock never goes back
  try {
    channel_->send(reply);
  } catch (const MessageTooLarge& error) {
    send_error({"miniray::MessageTooLarge", "the result cannot be sent: " + std::string(error.what()), ""});
  }
}

void OwedReply::send_error(const CallFailure& failure) const {
  const Value body = error_body(failure);
  Message reply = reply_message(ReplyVerb::error, body, codec());
  send(reply);
}

void answer_call(Channel& channel, const Message& call, Callee& callee) {
  const OwedReply reply(channel, call.head.number);
  const bool too_late = call.head.time_ns != 0 && now_ns() > call.head.time_ns;  // a pool has taken it back, or will
  if (!too_late && !(reply.is_wanted() && channel.was_dropped(call.head.number))) return callee.carry_out(call, reply);
  Message dropped = reply_message(ReplyVerb::dropped, Value(), channel.codec());
  reply.send(dropped);
}

}  // namespace miniray
