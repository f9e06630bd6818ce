// Answers the calls that a worker gets, for both languages. A call that was cancelled or comes too late is dropped. A
// callee runs every other call, and sends one reply.
#pragma once

#include <cstdint>

#include "calls/call_format.hpp"
#include "miniray/channel.hpp"

namespace miniray {

/// The reply that a caller waits for. The channel must outlive it.
class OwedReply {
 public:
  /// The time that the call takes is measured from now on.
  OwedReply(Channel& channel, std::int64_t number);

  /// Returns false if nobody waits for the reply.
  [[nodiscard]] bool is_wanted() const { return number_ != 0; }
  /// Returns false if the caller only wants to know whether the call succeeded, such as a pool's initializer. The value
  /// of such a reply is null, so that no value can keep the call from succeeding.
  [[nodiscard]] bool wants_value() const { return number_ > 0; }
  [[nodiscard]] Codec codec() const { return channel_->codec(); }
  /// Sends the reply, with the call's number and the time that has passed. Call it once. Instead of a reply that is
  /// larger than a message may be, the caller gets an error that says so.
  void send(Message& reply) const;
  void send_error(const CallFailure& failure) const;

 private:
  Channel* channel_;
  std::int64_t number_, begun_ns_;
};

/// Runs calls in one of the languages.
class Callee {
 public:
  Callee() = default;
  Callee(const Callee&) = delete;
  Callee& operator=(const Callee&) = delete;
  virtual ~Callee() = default;
  /// Runs a call and sends one reply if it is wanted: now or, if the call goes on, later.
  virtual void carry_out(const Message& call, const OwedReply& reply) = 0;
};

void answer_call(Channel& channel, const Message& call, Callee& callee);

}  // namespace miniray
