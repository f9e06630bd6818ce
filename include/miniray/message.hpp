// A message in its encoded form: a body in one of the codecs, and the buffers that travel beside the body.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "miniray/array.hpp"
#include "miniray/export.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

enum class Codec : std::uint8_t { msgpack = 0, json = 1 };

[[nodiscard]] const char* name_of(Codec codec);
/// Throws UsageError if there is no codec of that name.
[[nodiscard]] Codec parse_codec(std::string_view name);

/// What a call asks a worker to do. After `plain`, neither side of the connection sends pickles, and both refuse them.
enum class CallVerb : std::uint8_t { call, map, define, create, forget, environment, plain };
/// What a reply says about its call.
enum class ReplyVerb : std::uint8_t { value, values, pickle, error, unknown, dropped };

/// The head of a call or a reply. It is not part of the body, so code that only forwards a message need not decode it.
struct CallHead {
  std::int64_t number = 0;   ///< the call's number; 0: the caller wants no reply. In keep and forget: the buffer's
  std::int64_t time_ns = 0;  ///< in a call: when it must have begun, 0: any time. In a reply: how long the call took
  std::uint8_t verb = 0;     ///< a CallVerb or a ReplyVerb; unchecked if a peer sent it
};

/// Where the receiver of a message finds one of its buffers. docs/buffers.md explains the routes. The stored number is
/// the one in a frame's table of buffers.
class BufferPlace {
 public:
  enum class Route : std::uint8_t {
    stream,      ///< in the frame itself
    slot,        ///< in a slot of memory that two processes of one machine share
    supplied,    ///< the worker's server has it: a coordinator sent it there once, for all workers of the server
    kept,        ///< the receiver has it: an earlier message told the receiver to keep it
    memory,      ///< in memory whose descriptor comes with the frame
    descriptor,  ///< it has no bytes, and stands for a descriptor that comes with the frame
  };
  constexpr BufferPlace() = default;  ///< in the stream
  [[nodiscard]] static constexpr BufferPlace slot(std::uint32_t number) { return BufferPlace(number); }
  [[nodiscard]] static constexpr BufferPlace supplied(std::uint64_t number) {
    return BufferPlace(supplied_bit | number);
  }
  [[nodiscard]] static constexpr BufferPlace kept(std::uint64_t number) { return BufferPlace(kept_bit | number); }

  /// `offset` says where the bytes begin in the memory.
  [[nodiscard]] static constexpr BufferPlace memory(std::uint64_t offset) { return BufferPlace(memory_bit | offset); }
  [[nodiscard]] static constexpr BufferPlace descriptor() { return BufferPlace(descriptor_bit); }

  [[nodiscard]] constexpr Route route() const {
    if (word_ == 0) return Route::stream;
    if ((word_ & kept_bit) != 0) return Route::kept;
    if ((word_ & supplied_bit) != 0) return Route::supplied;
    if ((word_ & memory_bit) != 0) return Route::memory;
    return (word_ & descriptor_bit) != 0 ? Route::descriptor : Route::slot;
  }
  /// Returns the number of the slot, or of the buffer that is supplied or kept, or the offset in the memory.
  [[nodiscard]] constexpr std::uint64_t number() const {
    const Route found = route();
    if (found == Route::kept) return word_ & ~kept_bit;
    if (found == Route::supplied) return word_ & ~supplied_bit;
    if (found == Route::memory) return word_ & ~memory_bit;
    return found == Route::descriptor ? word_ & ~descriptor_bit : word_;
  }
  [[nodiscard]] constexpr bool in_stream() const { return word_ == 0; }
  [[nodiscard]] constexpr bool has_descriptor() const {
    return route() == Route::memory || route() == Route::descriptor;
  }
  friend constexpr bool operator==(BufferPlace, BufferPlace) = default;

 private:
  static constexpr std::uint64_t supplied_bit = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kept_bit = std::uint64_t{1} << 62;
  static constexpr std::uint64_t memory_bit = std::uint64_t{1} << 61;
  static constexpr std::uint64_t descriptor_bit = std::uint64_t{1} << 60;
  explicit constexpr BufferPlace(std::uint64_t word) : word_(word) {}
  std::uint64_t word_ = 0;
};

struct Message {
  /// What a frame is for. The last four occur in frames only: two channels on one machine use them to agree on shared
  /// memory.
  enum class Kind : std::uint8_t {
    message = 0,
    error = 1,   ///< the work function threw; the body describes the exception
    end = 2,     ///< the work function returned; no body
    call = 5,    ///< asks a worker to do something
    reply = 6,   ///< a worker's answer to a call
    drop = 7,    ///< tells a worker not to begin a call; no body
    keep = 8,    ///< has a buffer that later messages name by its number; no body
    forget = 9,  ///< no later message names this kept buffer; no body
    share = 3,
    unshare = 4,
    ring = 10,
    bell = 11,
  };
  Kind kind = Kind::message;
  Codec codec = Codec::msgpack;
  CallHead head = {};  ///< only the kinds from call to forget have one
  std::string body;
  std::vector<Buffer> buffers;
  /// If empty, all buffers are sent. Else there is one place for each buffer, and a buffer that is supplied or kept is
  /// not sent, because the receiver has it.
  std::vector<BufferPlace> places = {};

  /// Returns the bytes of the body and of all buffers.
  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t bytes = body.size();
    for (const Buffer& buffer : buffers) bytes += buffer.size;
    return bytes;
  }
};

/// Returns whether messages of this kind have a CallHead.
[[nodiscard]] constexpr bool has_call_head(Message::Kind kind) {
  return kind >= Message::Kind::call && kind <= Message::Kind::forget;
}

/// Encodes a value. The message's buffers borrow memory from the value, which must outlive the message. Throws
/// Unsendable, which names the place inside the value, if the codec cannot hold a part of it.
[[nodiscard]] Message encode(const Value& value, Codec codec = Codec::msgpack);
/// Decodes a message. The value shares the message's buffers. Throws ProtocolError if the message is not well formed.
[[nodiscard]] Value decode(const Message& message);
/// Returns the body as abridged JSON for people to read. If the body is cut short or malformed, returns what comes
/// before that.
[[nodiscard]] std::string text_of(Codec codec, std::string_view body);

}  // namespace miniray
