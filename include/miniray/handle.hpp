// The worker's end of the conversation: what a work function is given.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "miniray/channel.hpp"

namespace miniray {

class Handle {
 public:
  explicit Handle(Channel channel) : channel_(std::move(channel)) {}

  void send(const Value& value) { channel_.send(value); }
  /// EndOfStream when the coordinator has closed; a work function that lets it pass ends in good order. Calls that come
  /// first are answered on the way.
  [[nodiscard]] Value recv(const ReceiveOptions& options = {}) { return decode(receive(options)); }
  [[nodiscard]] int fileno() const { return channel_.fileno(); }

  // One rung lower: messages in their encoded form, and calls that do not wait. Where nothing is said, a call does what
  // Channel's does.
  void send(const std::same_as<Message> auto& message) { channel_.send(message); }  // so that {} is a value
  bool send_some(const Message& message) { return channel_.send_some(message); }
  bool flush_some() { return channel_.flush_some(); }
  [[nodiscard]] Message receive(const ReceiveOptions& options = {});
  /// Never waits, except for the calls that it answers; nothing if no whole message is there.
  [[nodiscard]] std::optional<Message> try_receive(std::optional<std::uint64_t> max_size = {});
  void put_back(Message message) { channel_.put_back(std::move(message)); }
  void pump() { channel_.pump(); }
  void look_around() { channel_.look_around(); }
  [[nodiscard]] bool has_unsent() const { return channel_.has_unsent(); }
  [[nodiscard]] bool ended() const { return channel_.ended(); }
  [[nodiscard]] Codec codec() const { return channel_.codec(); }
  [[nodiscard]] Channel& channel() { return channel_; }
  /// Who answers calls, which are messages of Kind::call. Without it, callers are told that nobody does.
  using CallServer = std::function<void(Handle&, Message)>;
  void set_call_server(CallServer server) { call_server_ = std::move(server); }
  /// What goes on while receive() waits: calls that have begun and are not done. It waits in place of receive(), until
  /// fileno() may be readable, its own work is done, or the seconds are over. It is dropped once it returns false.
  using Background = std::function<bool(Handle&, std::optional<double> timeout_s)>;
  void set_background(Background background) { background_ = std::move(background); }

 private:
  void answer(Message call);

  Channel channel_;
  CallServer call_server_;
  Background background_;
};

/// Runs in the worker's process. It ends well by returning, badly by throwing.
using WorkFunction = std::function<void(Handle&)>;

/// For a program that a coordinator started with Worker::spawn: runs the function and returns what main() should.
/// Throws UsageError in a program that was started in another way.
int run_spawned(const WorkFunction& work);

}  // namespace miniray
