// Two endpoints that pass messages over a socket. Large buffers go through shared memory when both are processes of
// one machine (a Unix-domain socket), without anybody asking.
//
// A channel belongs to the process that made it and to one thread at a time; using it from two at once throws
// UsageError. Every call leaves the stream in step, whatever it throws, except after ProtocolError.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "miniray/limits.hpp"
#include "miniray/message.hpp"
#include "miniray/value.hpp"

namespace miniray {

struct ChannelOptions {
  std::string peer = "peer";        ///< how errors and traces call the other side
  Codec codec = Codec::msgpack;     ///< of the values that are sent; what is received says its own
  bool shared_memory = true;        ///< false: never, even where it could be used
  std::optional<int> spin_us = {};  ///< how long to spin before sleeping; by default MINIRAY_SPIN_US or limits::spin_us
  std::uint64_t inbox_bytes_max = limits::inbox_bytes_max;
  std::uint64_t message_bytes_max = limits::message_bytes_max;
  std::function<void()> on_interrupt = {};  ///< a signal came during a wait; may throw, to end the wait
  std::function<bool()> peer_is_gone = {};  ///< asked during long waits, should the socket not have told
  /// Buffers that reached this machine in another way: by the number that the message has for them, and their size.
  std::function<Buffer(std::uint64_t number, std::uint64_t bytes)> supply = {};
  bool check_invariants = false;  ///< for tests: call Channel::check_invariants() at the end of every call
};

/// Calls and their replies pass plain messages by: who waits for one kind leaves the other where it is.
enum class Lane : std::uint8_t { messages, calls, any };

struct ReceiveOptions {
  std::optional<std::uint64_t> max_size = {};  ///< MessageTooLarge above; the message stays for a later call
  std::optional<double> timeout_s = {};        ///< TimeoutError after; what has arrived of a message is kept
  Lane lane = Lane::messages;                  ///< any: in the order of arrival
};

class Channel {
 public:
  /// Takes over a connected stream socket.
  explicit Channel(int socket, ChannelOptions options = {});
  /// The two ends of a socket pair.
  static std::pair<Channel, Channel> pair(const ChannelOptions& options = {});
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) noexcept;
  ~Channel();

  /// Returns when the kernel or shared memory has the whole message: the value may then change. While it waits for
  /// room, it reads what arrives, so two ends that both send never wait for each other. EndOfStream if the peer is
  /// gone.
  void send(const Value& value) { send(encode(value, codec())); }
  void send(const Message& message);
  /// Never waits: what the kernel does not take is copied and kept. True if nothing is left to flush.
  bool send_some(const Message& message);
  /// Writes what earlier calls had to keep. True if nothing is left.
  bool flush_some();

  /// The next message. EndOfStream when the peer has closed and everything was received.
  [[nodiscard]] Value recv(const ReceiveOptions& options = {}) { return decode(receive(options)); }
  [[nodiscard]] Message receive(const ReceiveOptions& options = {});
  /// Never waits; nothing if no whole message is there.
  [[nodiscard]] std::optional<Message> try_receive(std::optional<std::uint64_t> max_size = {},
                                                   Lane lane = Lane::messages);
  /// Undoes a receive: the message is the next again. For a receiver that was interrupted before it could use it.
  void put_back(Message message);
  /// Reads everything that has arrived into the inbox, as far as it has room.
  void pump();
  /// Asks whether the peer is gone, should its socket not have told: for who waits for the socket without this class.
  void look_around();
  /// Whether an earlier call had to keep something that flush_some() should write.
  [[nodiscard]] bool has_unsent() const;
  /// Whether the inbox holds all that it may, so that pump() reads no more.
  [[nodiscard]] bool inbox_is_full() const;
  /// Drops what was received and whatever comes: the owner only has something left to say.
  void discard_received();
  /// The newest message that was not taken yet, if there is one.
  [[nodiscard]] const Message* newest() const;
  /// How many messages have come into the inbox, ever.
  [[nodiscard]] std::uint64_t arrived() const;
  /// The peer will send no more than what is in the inbox.
  [[nodiscard]] bool ended() const;
  /// The errno that ended it; 0 if it ended in good order, or has not.
  [[nodiscard]] int end_error() const;
  /// Reads what is there; true if receive() would now return or throw at once.
  [[nodiscard]] bool ready();
  /// Whether the peer has taken back the call of this number. Reads what is there.
  [[nodiscard]] bool was_dropped(std::int64_t call);
  /// What ready() and wait_any look for; plain messages by default.
  void look_for(Lane lane);

  /// The peer sees the end of the stream after what was sent. What it still sends can be received.
  void end();
  /// The same, and what the peer sends fails from now on. Received messages can still be taken.
  void close();
  [[nodiscard]] bool closed() const;

  [[nodiscard]] int fileno() const;  ///< readable when ready() may have become true
  [[nodiscard]] Codec codec() const;
  [[nodiscard]] const std::string& peer() const;
  /// The last messages each way, abridged, a line each.
  [[nodiscard]] std::string recent_messages() const;
  /// For tests. Walks all that the channel keeps, and aborts if parts of it contradict each other, which is our bug.
  void check_invariants() const;

  class State;  // the inside, for the library's own files

 private:
  friend class WaitSet;
  std::unique_ptr<State> state_;
};

/// The positions of the channels that are ready, in order; none on time-out. The cost is per ready channel: calling it
/// again with the same channels, or nearly the same, does not look at those that are quiet.
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<Channel* const> channels,
                                                std::optional<double> timeout_s = {});

/// How many channels have been closed or destroyed since the program began: while it stays the same, so do those that
/// a caller remembers. For language bindings.
[[nodiscard]] std::uint64_t channel_departures();

}  // namespace miniray
