// What a worker does with a call, in whichever language the function is: it may have been taken back, or come to its
// turn too late; else a callee carries it out, and one reply goes out.
#pragma once

#include <cstdint>

#include "calls/call_format.hpp"
#include "miniray/channel.hpp"

namespace miniray {

/// The reply that the caller of one call waits for. It refers to the channel.
class OwedReply {
 public:
  /// From now on the call runs.
  OwedReply(Channel& channel, std::int64_t number);

  /// False if nobody waits for it.
  [[nodiscard]] bool is_wanted() const { return number_ != 0; }
  [[nodiscard]] Codec codec() const { return channel_->codec(); }
  /// Sends it with the call's number and the time that has passed. Once. A reply that is larger than a message may be
  /// becomes an error that says so: the stream is still in step, and the caller is owed something.
  void send(Message& reply) const;
  void send_error(const CallFailure& failure) const;

 private:
  Channel* channel_;
  std::int64_t number_, begun_ns_;
};

/// Runs calls, in one of the languages.
class Callee {
 public:
  Callee() = default;
  Callee(const Callee&) = delete;
  Callee& operator=(const Callee&) = delete;
  virtual ~Callee() = default;
  /// Sends one reply if it is wanted, whatever the call does: now or, if the call goes on, later.
  virtual void carry_out(const Message& call, const OwedReply& reply) = 0;
};

void answer_call(Channel& channel, const Message& call, Callee& callee);

}  // namespace miniray
