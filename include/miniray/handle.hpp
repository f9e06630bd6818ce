// The worker's end of its conversation with the coordinator. A work function gets a Handle as its argument.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "miniray/channel.hpp"
#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

/// A worker's end of its conversation. The work function gets a reference to it, and the worker owns it until that
/// function has returned. Values that it returns belong to the caller. One thread at a time may use it; a second one
/// gets a UsageError. It may be moved while no call is under way; a call on a Handle that was moved from throws
/// UsageError. If the work function moves it and then throws, the error is printed here, because nothing can be sent.
/// Without another comment, calls throw what the calls of the same names in Channel throw.
class Handle {
 public:
  /// Takes ownership of a channel whose other end is the coordinator.
  explicit Handle(Channel channel) : channel_(std::move(channel)) {}

  /// Sends a value to the coordinator, as Channel::send does.
  void send(const Value& value) { channel_.send(value); }
  template <class T>
    requires detail::NeitherValueNorMessage<T>
  void send(const T&) {
    detail::refuse_to_send<T>();
  }
  /// Waits for the next message and returns it. Answers the calls that arrive before that message. Throws EndOfStream
  /// when the coordinator has closed; a work function that does not catch it ends in good order.
  [[nodiscard]] Value recv(const ReceiveOptions& options = {}) { return decode(receive(options)); }
  /// The same, converted to T, as Channel::recv<T>() does.
  template <class T>
  [[nodiscard]] T recv(const ReceiveOptions& options = {}) {
    return detail::received_as<T>(recv(options));
  }
  [[nodiscard]] int fileno() const { return channel_.fileno(); }
  /// Returns an array in memory that send() passes on without a copy, as Channel::make_array does.
  template <class T>
  [[nodiscard]] Array make_array(Shape shape) const {
    return channel_.make_array<T>(std::move(shape));
  }
  [[nodiscard]] Array make_array(DType dtype, Shape shape) const {
    return channel_.make_array(dtype, std::move(shape));
  }

  // One rung lower: encoded messages, and calls that do not wait. A call without a comment does what the call of the
  // same name in Channel does.
  void send(const std::same_as<Message> auto& message) { channel_.send(message); }
  bool send_some(const Message& message) { return channel_.send_some(message); }
  bool flush_some() { return channel_.flush_some(); }
  [[nodiscard]] Message receive(const ReceiveOptions& options = {});
  /// Returns the next message, or nothing if no whole message has arrived. Waits only for the calls that it answers.
  [[nodiscard]] std::optional<Message> try_receive(std::optional<std::uint64_t> max_size = {});
  void put_back(Message message) { channel_.put_back(std::move(message)); }
  void pump() { channel_.pump(); }
  void look_around() { channel_.look_around(); }
  [[nodiscard]] bool has_unsent() const { return channel_.has_unsent(); }
  [[nodiscard]] bool inbox_is_full() const { return channel_.inbox_is_full(); }
  [[nodiscard]] bool ready() { return channel_.ready(); }
  [[nodiscard]] bool ended() const { return channel_.ended(); }
  [[nodiscard]] bool cut() const { return channel_.cut(); }
  [[nodiscard]] bool shares_memory() const { return channel_.shares_memory(); }
  [[nodiscard]] Codec codec() const { return channel_.codec(); }
  [[nodiscard]] Channel& channel() { return channel_; }
  /// Answers calls, which are messages of Kind::call. Without a call server, every caller gets an error.
  using CallServer = std::function<void(Handle&, Message)>;
  void set_call_server(CallServer server) { call_server_ = std::move(server); }
  /// Work that continues while receive() waits, such as calls that have begun and are not done. It waits in place of
  /// receive(), until fileno() may be readable, its own work is done, or the time-out is over. Once it returns false,
  /// the handle drops it.
  using Background = std::function<bool(Handle&, std::optional<double> timeout_s)>;
  void set_background(Background background) { background_ = std::move(background); }

 private:
  void answer(Message call);

  Channel channel_;
  CallServer call_server_;
  Background background_;
};

/// The function that runs in a worker's process. It ends well by returning and badly by throwing.
using WorkFunction = std::function<void(Handle&)>;

/// Runs the work function of a program that a coordinator started with Worker::spawn, and returns the exit code for
/// main(). Throws UsageError if the program was started in another way.
int run_spawned(const WorkFunction& work);

}  // namespace miniray
