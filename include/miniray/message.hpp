// A message in the form in which it travels: a body in one of the codecs, and the buffers that go beside it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "miniray/array.hpp"
#include "miniray/value.hpp"

namespace miniray {

enum class Codec : std::uint8_t { msgpack = 0, json = 1 };

[[nodiscard]] const char* name_of(Codec codec);
/// Throws UsageError if there is no codec of that name.
[[nodiscard]] Codec parse_codec(std::string_view name);

/// What a worker is asked to do.
enum class CallVerb : std::uint8_t { call, map, define, create, forget, environment };
/// What came of it.
enum class ReplyVerb : std::uint8_t { value, values, pickle, error, unknown, dropped };

/// What a call and its reply say besides their body, where whoever passes them on finds it without decoding that.
struct CallHead {
  std::int64_t number = 0;   ///< of the call; 0: nobody waits for a reply. Of keep and forget: of the buffer
  std::int64_t time_ns = 0;  ///< of a call: until when it may begin, 0: whenever. Of a reply: how long the call took
  std::uint8_t verb = 0;     ///< a CallVerb or a ReplyVerb, whatever the peer said
};

/// Where the receiver of a message finds one of its buffers: the way by which that travels. docs/buffers.md explains
/// the routes. In memory it is the number that a frame's table has.
class BufferPlace {
 public:
  enum class Route : std::uint8_t {
    stream,    ///< in the frame itself
    slot,      ///< in shared memory, between two processes of one machine
    supplied,  ///< with the worker's server, which was sent it once for all of its workers
    kept,      ///< with the receiver, which was told to keep it
  };
  constexpr BufferPlace() = default;  ///< in the stream
  [[nodiscard]] static constexpr BufferPlace slot(std::uint32_t number) { return BufferPlace(number); }
  [[nodiscard]] static constexpr BufferPlace supplied(std::uint64_t number) {
    return BufferPlace(supplied_bit | number);
  }
  [[nodiscard]] static constexpr BufferPlace kept(std::uint64_t number) { return BufferPlace(kept_bit | number); }

  [[nodiscard]] constexpr Route route() const {
    if (word_ == 0) return Route::stream;
    if ((word_ & kept_bit) != 0) return Route::kept;
    return (word_ & supplied_bit) != 0 ? Route::supplied : Route::slot;
  }
  /// Of the slot, or of the buffer.
  [[nodiscard]] constexpr std::uint64_t number() const {
    const Route found = route();
    return found == Route::kept ? word_ & ~kept_bit : found == Route::supplied ? word_ & ~supplied_bit : word_;
  }
  [[nodiscard]] constexpr bool in_stream() const { return word_ == 0; }
  friend constexpr bool operator==(BufferPlace, BufferPlace) = default;

 private:
  static constexpr std::uint64_t supplied_bit = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kept_bit = std::uint64_t{1} << 62;
  explicit constexpr BufferPlace(std::uint64_t word) : word_(word) {}
  std::uint64_t word_ = 0;
};

struct Message {
  /// What a frame is about. Only frames have the last four, by which two channels of one machine tell each other about
  /// shared memory.
  enum class Kind : std::uint8_t {
    message = 0,
    error = 1,   ///< the work function raised; the body says what
    end = 2,     ///< the work function returned; no body
    call = 5,    ///< to a worker: something to be done there
    reply = 6,   ///< from it: what came of a call
    drop = 7,    ///< to a worker: a call that is not to be begun; no body
    keep = 8,    ///< a buffer that later messages name by its number; no body
    forget = 9,  ///< a kept buffer that is not named any more; no body
    share = 3,
    unshare = 4,
    ring = 10,
    bell = 11,
  };
  Kind kind = Kind::message;
  Codec codec = Codec::msgpack;
  CallHead head = {};  ///< of the kinds from call to forget
  std::string body;
  std::vector<Buffer> buffers;
  /// Empty: all buffers are sent. Else one for each buffer: those that are supplied or kept are not sent, since the
  /// receiver has them.
  std::vector<BufferPlace> places = {};

  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t bytes = body.size();
    for (const Buffer& buffer : buffers) bytes += buffer.size;
    return bytes;
  }
};

/// Whether messages of this kind have a CallHead.
[[nodiscard]] constexpr bool has_call_head(Message::Kind kind) {
  return kind >= Message::Kind::call && kind <= Message::Kind::forget;
}

/// The buffers borrow from the value, which must outlive the message. Throws Unsendable, naming the place.
[[nodiscard]] Message encode(const Value& value, Codec codec = Codec::msgpack);
/// Takes over the message's buffers. Throws ProtocolError if it is not well formed.
[[nodiscard]] Value decode(const Message& message);
/// The body as JSON, abridged, for people. It may have been cut short: what is there is shown.
[[nodiscard]] std::string text_of(Codec codec, std::string_view body);

}  // namespace miniray
