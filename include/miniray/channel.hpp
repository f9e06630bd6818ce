// A channel is one end of a conversation: it sends and receives messages over a socket. If the socket is a Unix-domain
// socket, large buffers automatically go through shared memory.
//
// A channel belongs to the process that created it, and one thread at a time may use it; a second thread gets a
// UsageError. An exception leaves the channel usable, unless the peer sent bytes that are not a frame, or a frame above
// message_bytes_max: the channel is then closed.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "miniray/convert.hpp"
#include "miniray/export.hpp"
#include "miniray/limits.hpp"
#include "miniray/message.hpp"
#include "miniray/owned.hpp"
#include "miniray/seconds.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

class Seal;

struct ChannelOptions {
  std::string peer = "peer";     ///< the peer's name in errors and traces
  Codec codec = Codec::msgpack;  ///< for values that are sent; a received message names its own codec
  bool shared_memory = true;     ///< whether to use shared memory where that is possible
  /// How long to spin before sleeping; by default MINIRAY_SPIN_US or limits::spin_us.
  std::optional<Microseconds> spin_us = {};
  /// How much the channel holds of what it has received and its user has not, in all lanes together.
  std::uint64_t inbox_bytes_max = limits::inbox_bytes_max;
  /// The largest message that the channel sends or receives. A larger one that arrives ends the channel.
  std::uint64_t message_bytes_max = limits::message_bytes_max;
  std::function<void()> on_interrupt = {};  ///< called in a wait, after a signal and now and then; throws to end it
  std::function<bool()> peer_is_gone = {};  ///< called during long waits, in case the socket has not shown it
  /// Returns the supplied buffer of that number (see BufferPlace), which has that size.
  std::function<Buffer(std::uint64_t number, std::uint64_t bytes)> supply = {};
  /// The peer is a worker, which answers calls. What only a worker gets (calls to drop, buffers to keep) is refused.
  bool peer_is_worker = false;
  std::shared_ptr<Seal> seal = {};  ///< for the library's own files: encrypts what passes through the socket
  bool check_invariants = false;    ///< for tests: every call ends with Channel::check_invariants()
};

/// Which messages to receive. Calls and replies are one lane, all other messages are another. A receive from one lane
/// leaves the messages of the other in the inbox.
enum class Lane : std::uint8_t { messages, calls, any };

struct ReceiveOptions {
  std::optional<std::uint64_t> max_size = {};  ///< a larger message throws MessageTooLarge, and stays for a later call
  Timeout timeout_s = {};                      ///< then TimeoutError; the part of a message that has arrived is kept
  Lane lane = Lane::messages;                  ///< Lane::any receives in the order of arrival
};

class PassedDescriptor;  // for the library's own files: src/wire/passed.hpp
namespace detail {

template <class T>
concept NeitherValueNorMessage =
    !std::is_convertible_v<const T&, Value> && !std::is_convertible_v<T, Value> && !std::same_as<T, Message>;
/// Makes the error of a send() that cannot compile readable.
template <class T>
void refuse_to_send() {
  static_assert(std::is_convertible_v<const T&, Value>,
                "miniray cannot send this type: describe the class with fields() (miniray/fields.hpp), or specialise "
                "miniray::Convert for it, with to()");
}
template <class T>
[[nodiscard]] T received_as(Value&& message) {
  static_assert(
      !refers_to_value<T>,
      "a received object owns its content: ask for std::string or std::vector, or keep the message in a Value");
  return convert<T>(std::move(message));
}

}  // namespace detail

/// Owns its socket, its inbox and its shared memory; messages that it returns belong to the caller. It may be moved
/// while no call is under way. A Channel that was moved from can be destroyed and assigned to, and every other call on
/// it throws UsageError. Its destructor closes it, and so does an assignment.
class Channel {
 public:
  /// Takes ownership of a connected stream socket.
  explicit Channel(int socket, ChannelOptions options = {});
  /// Returns the two ends of a new conversation. Each end can be sent to a worker of this machine, so that two workers
  /// talk to each other: `worker.send({{"peer", std::move(end)}})`, and in the worker `Channel peer(msg["peer"])`.
  static std::pair<Channel, Channel> pair(const ChannelOptions& options = {});
  /// Takes the end of a channel out of a received message. Throws UsageError if the value is something else, or if the
  /// end was taken before. An end that nobody takes is closed with the message.
  explicit Channel(const Value& received, ChannelOptions options = {});
  /// Puts this end into a message. It must not have been used: UsageError is thrown if it has sent or received
  /// anything. The send closes it here. If the value is dropped without being sent, the end is closed, and its peer
  /// gets EndOfStream. Sending it through TCP throws UsageError.
  operator Value() &&;
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) noexcept;
  ~Channel();

  /// Sends a message. Returns when the kernel or shared memory has the whole message; the caller may then change the
  /// value. While send() waits for room it reads what arrives, so two ends that both send never block each other.
  /// Throws EndOfStream if the peer is gone, InboxFull if the inbox has no room for what arrives, MessageTooLarge if
  /// the message exceeds message_bytes_max, and Unsendable if no message can hold the value.
  /// An object that Convert knows (convert.hpp) is sent as what it converts to: send(Point{1, 2}). send({}) sends null.
  void send(const Value& value) { send_message(encode(value, codec())); }
  void send(const std::same_as<Message> auto& message) { send_message(message); }  // a template, so send({}) is a Value
  template <class T>
    requires detail::NeitherValueNorMessage<T>
  void send(const T&) {
    detail::refuse_to_send<T>();
  }
  /// Sends a message without waiting: the channel copies and keeps the part that the kernel does not take now. Returns
  /// true if nothing is left for flush_some().
  bool send_some(const Message& message);
  /// Writes, without waiting, what earlier calls have kept. Returns true if nothing is left.
  bool flush_some();

  /// Waits for the next message and returns it. Throws EndOfStream when the peer has closed and every message was
  /// received; TimeoutError and MessageTooLarge as ReceiveOptions say; InboxFull if messages of the other lane, which
  /// nobody receives, fill the inbox before one of this lane comes.
  [[nodiscard]] Value recv(const ReceiveOptions& options = {}) { return decode(receive(options)); }
  /// The same, converted to T. Throws Mismatch if the message is something else; the message is gone then.
  template <class T>
  [[nodiscard]] T recv(const ReceiveOptions& options = {}) {
    return detail::received_as<T>(recv(options));
  }
  [[nodiscard]] Message receive(const ReceiveOptions& options = {});
  /// Returns the next message without waiting, or nothing if no whole message has arrived. Throws as receive() does.
  [[nodiscard]] std::optional<Message> try_receive(std::optional<std::uint64_t> max_size = {},
                                                   Lane lane = Lane::messages);
  /// Undoes a receive: the message becomes the next one again. For a receiver that is interrupted before it could use
  /// the message.
  void put_back(Message message);
  /// Reads into the inbox, without waiting, what has arrived and fits.
  void pump();
  /// Calls ChannelOptions::peer_is_gone, and ends the channel if the peer is gone. Code that waits for fileno() itself
  /// should call it now and then.
  void look_around();
  /// Returns whether flush_some() has something to write.
  [[nodiscard]] bool has_unsent() const;
  /// Returns whether the inbox is full, so that pump() reads no more.
  [[nodiscard]] bool inbox_is_full() const;
  /// Drops every received message, and every later one: the caller only sends from now on.
  void discard_received();
  /// Returns the newest message in Lane::messages, or nullptr. It is valid until the next call that is not const.
  [[nodiscard]] const Message* newest() const;
  /// Returns how many messages have ever come into the inbox.
  [[nodiscard]] std::uint64_t arrived() const;
  /// Returns whether the peer will send no more messages than those in the inbox.
  [[nodiscard]] bool ended() const;
  /// Returns the errno with which the stream ended; 0 if it ended in good order, or has not ended.
  [[nodiscard]] int end_error() const;
  /// Returns whether an encrypted connection ended without the record that ends it: the peer's process or host has
  /// died, or somebody has cut the connection.
  [[nodiscard]] bool cut() const;
  /// Reads what has arrived. Returns true if receive() would now return or throw without waiting.
  [[nodiscard]] bool ready();
  /// Reads what has arrived. Returns whether the peer has dropped the call of this number.
  [[nodiscard]] bool was_dropped(std::int64_t call);
  /// Sets the lane that ready() and wait_any() look at. By default it is Lane::messages.
  void look_for(Lane lane);

  /// Returns an array of uninitialised elements in memory that send() passes on without a copy; see make_array() in
  /// array.hpp. If the peer is not on this machine, or the channel may not use shared memory, it is ordinary memory.
  [[nodiscard]] Array make_array(DType dtype, Shape shape) const;
  template <class T>
  [[nodiscard]] Array make_array(Shape shape) const {
    return make_array(dtype_of<T>(), std::move(shape));
  }

  /// Closes the sending direction: the peer sees the end of the stream after the last message. Messages from the peer
  /// can still be received.
  void end();
  /// Closes both directions: from now on the peer's sends fail. Messages in the inbox can still be received.
  void close();
  [[nodiscard]] bool closed() const;
  /// False if it was moved from.
  [[nodiscard]] bool valid() const { return static_cast<bool>(state_); }

  /// Returns whether what passes through the socket is encrypted.
  [[nodiscard]] bool sealed() const;
  /// Returns whether memory and channels can be passed to the peer: it is on this machine, and the channel may use
  /// shared memory.
  [[nodiscard]] bool shares_memory() const;

  [[nodiscard]] int fileno() const;  ///< readable when ready() may have become true
  [[nodiscard]] Codec codec() const;
  [[nodiscard]] const std::string& peer() const;
  /// Returns the last messages in each direction, abridged, one per line.
  [[nodiscard]] std::string recent_messages() const;
  /// For tests. Aborts if parts of the channel's state contradict each other, which would be a bug in MiniRay.
  void check_invariants() const;
  /// For language bindings: what operator Value() does, and how to undo it if the message was not sent.
  [[nodiscard]] std::shared_ptr<PassedDescriptor> release_end();
  void restore_end(PassedDescriptor& end);

  class State;  // for the library's own files

 private:
  friend class WaitSet;
  void send_message(const Message& message);

  Owned<State> state_;
};

/// Waits until a channel is ready. Returns the positions of all ready channels in ascending order, or none after the
/// time-out. Repeated calls with (nearly) the same channels cost time per ready channel, not per channel.
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<Channel* const> channels, Timeout timeout_s = {});

/// Returns how many channels have been closed or destroyed since the program began. While the number does not change,
/// the channels that a language binding has cached are still valid.
[[nodiscard]] std::uint64_t channel_departures();

}  // namespace miniray
