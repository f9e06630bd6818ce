#include "wire/frame.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/free_memory.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// The limits are checked here, before anything is allocated for the frame.
void check_head(const FrameHead& head, std::uint64_t message_bytes_max) {
  if (head.magic != frame_magic || static_cast<std::uint8_t>(head.kind) >= frame_kind_count ||
      static_cast<std::uint8_t>(head.codec) > static_cast<std::uint8_t>(Codec::json))
    throw ProtocolError("the peer sent bytes that are not a MiniRay frame; does it speak another protocol or version?");
  if (head.body_bytes > std::min(limits::body_bytes_max, message_bytes_max))
    throw MessageTooLarge("the peer announced a message with a body of " + std::to_string(head.body_bytes) +
                          " bytes; the limit is " +
                          std::to_string(std::min(limits::body_bytes_max, message_bytes_max)));
  if (head.buffer_count > limits::buffers_max)
    throw MessageTooLarge("the peer announced a message with " + std::to_string(head.buffer_count) +
                          " buffers; the limit is " + std::to_string(limits::buffers_max));
}

// Adds the bytes of a buffer, wherever they are, to those of its message.
void count_entry(std::uint64_t& announced, const BufferEntry& entry, std::uint64_t message_bytes_max) {
  if (__builtin_add_overflow(announced, entry.bytes, &announced) || announced > message_bytes_max)
    throw MessageTooLarge("the peer announced a message of more than " + std::to_string(message_bytes_max) +
                          " bytes, which is the limit (message_bytes_max)");
}

CallHead checked(const FrameCallHead& head) {
  if (head.unused != FrameCallHead{}.unused)
    throw ProtocolError("the peer sent a malformed call; does it speak another version of the protocol?");
  return {head.number, head.time_ns, head.verb};
}

}  // namespace

std::uint64_t Frame::stream_bytes() const {
  std::uint64_t bytes = sizeof(FrameHead) + (has_call_head(head.kind) ? sizeof(FrameCallHead) : 0) +
                        entries.size() * sizeof(BufferEntry) + body.size();
  for (const BufferEntry& entry : entries) bytes += entry.place.in_stream() ? entry.bytes : 0;
  return bytes;
}

void append_frame_prefix(std::string& out, const FrameHead& head, const CallHead& call,
                         std::span<const BufferEntry> entries) {
  MINIRAY_CHECK(head.buffer_count == entries.size(), head.buffer_count, entries.size());
  out.append(reinterpret_cast<const char*>(&head), sizeof(head));
  if (has_call_head(head.kind)) {
    const FrameCallHead call_head{call.number, call.time_ns, call.verb};
    out.append(reinterpret_cast<const char*>(&call_head), sizeof(call_head));
  }
  if (!entries.empty()) out.append(reinterpret_cast<const char*>(entries.data()), entries.size_bytes());
}

// Every take() checks that the bytes exist, so no size in the frame can cause a large allocation.
Frame parse_frame(std::string_view bytes, std::uint64_t message_bytes_max) {
  const auto take = [&](std::uint64_t count) {
    if (count > bytes.size()) throw ProtocolError("the peer sent an incomplete frame through shared memory");
    const std::string_view taken = bytes.substr(0, count);
    bytes.remove_prefix(count);
    return taken;
  };
  Frame frame;
  std::memcpy(&frame.head, take(sizeof(FrameHead)).data(), sizeof(FrameHead));
  check_head(frame.head, message_bytes_max);
  if (has_call_head(frame.head.kind)) {
    FrameCallHead call_head;
    std::memcpy(&call_head, take(sizeof(call_head)).data(), sizeof(call_head));
    frame.call = checked(call_head);
  }
  const std::string_view table = take(frame.head.buffer_count * sizeof(BufferEntry));
  frame.entries.resize(frame.head.buffer_count);
  if (!table.empty()) std::memcpy(frame.entries.data(), table.data(), table.size());
  std::uint64_t announced = frame.head.body_bytes;
  for (const BufferEntry& entry : frame.entries) count_entry(announced, entry, message_bytes_max);
  frame.body = take(frame.head.body_bytes);
  frame.buffers.resize(frame.entries.size());
  for (std::size_t i = 0; i < frame.entries.size(); ++i) {
    if (!frame.entries[i].place.in_stream()) continue;
    const std::string_view buffer = take(frame.entries[i].bytes);
    frame.buffers[i] = Buffer::allocate(buffer.size());
    if (!buffer.empty()) std::memcpy(frame.buffers[i].data, buffer.data(), buffer.size());
  }
  if (!bytes.empty()) throw ProtocolError("the peer sent more than one frame in one record of shared memory");
  return frame;
}

bool parse_plain_message(std::string_view bytes, std::uint64_t message_bytes_max, std::optional<Message>& message) {
  FrameHead head;
  if (bytes.size() < sizeof(head)) return false;
  std::memcpy(&head, bytes.data(), sizeof(head));
  bytes.remove_prefix(sizeof(head));
  const bool is_call = head.kind == Message::Kind::call || head.kind == Message::Kind::reply;
  if ((!is_call && head.kind != Message::Kind::message) || head.buffer_count > 0) return false;
  check_head(head, message_bytes_max);
  CallHead call;
  if (is_call) {
    FrameCallHead call_head;
    if (bytes.size() < sizeof(call_head)) return false;
    std::memcpy(&call_head, bytes.data(), sizeof(call_head));
    bytes.remove_prefix(sizeof(call_head));
    call = checked(call_head);
  }
  if (bytes.size() != head.body_bytes) return false;
  Message& plain = message.emplace();
  plain.kind = head.kind;
  plain.codec = head.codec;
  plain.head = call;
  plain.body = bytes;
  return true;
}

PlainPrefix::PlainPrefix(const Message& message) {
  FrameHead head;
  head.kind = message.kind;
  head.codec = message.codec;
  head.body_bytes = message.body.size();
  std::memcpy(bytes_.data(), &head, sizeof(head));
  if (!has_call_head(message.kind)) return;
  const FrameCallHead call_head{message.head.number, message.head.time_ns, message.head.verb};
  std::memcpy(bytes_.data() + size_, &call_head, sizeof(call_head));
  size_ += sizeof(call_head);
}

// Smaller buffers come from the heap, whole: they are allocated one at a time, when their bytes come.
bool FrameReader::arrives_in_pages(const BufferEntry& entry) {
  return entry.bytes >= limits::recycled_buffer_bytes_min;
}

// Returns the final place of the next bytes, or nothing if they should go to the staging area: a small rest, or bytes
// that other staged bytes precede.
std::span<std::byte> FrameReader::direct_room() {
  if (staged() > 0) return {};
  if (state_ == State::body) {
    const std::uint64_t left = frame_.head.body_bytes - filled_;
    if (left < limits::staging_bytes) return {};
    // The body at most doubles, so its memory stays in proportion to the bytes that have arrived.
    frame_.body.resize(filled_ + std::min<std::uint64_t>(left, std::max(limits::body_growth_bytes, filled_)));
    return std::as_writable_bytes(std::span(frame_.body)).subspan(filled_);
  }
  if (state_ == State::buffers && buffer_ < frame_.buffers.size()) {
    const std::uint64_t left = frame_.entries[buffer_].bytes - filled_;
    if (left < limits::staging_bytes) return {};
    if (!arrives_in_pages(frame_.entries[buffer_])) return frame_.buffers[buffer_].bytes().subspan(filled_);
    // So does the memory of a large buffer. Growing moves its pages, and copies nothing.
    arriving_.grow(filled_ + std::min<std::uint64_t>(left, std::max(limits::buffer_growth_bytes, filled_)));
    return {arriving_.data() + filled_, std::min<std::uint64_t>(left, arriving_.bytes() - filled_)};
  }
  return {};
}

std::span<std::byte> FrameReader::room() {
  const std::span<std::byte> final_place = direct_room();
  direct_ = !final_place.empty();
  if (direct_) return final_place;
  if (!staging_) staging_ = std::make_unique_for_overwrite<std::byte[]>(limits::staging_bytes);
  if (staged() == 0) staged_begin_ = staged_end_ = 0;
  if (staged_begin_ > 0) {  // moves the unparsed rest to the front, which makes room behind it
    std::memmove(staging_.get(), staging_.get() + staged_begin_, staged());
    staged_end_ -= std::exchange(staged_begin_, 0);
  }
  MINIRAY_CHECK(staged_end_ < limits::staging_bytes, staged_end_);
  return {staging_.get() + staged_end_, limits::staging_bytes - staged_end_};
}

// Bytes of a direct room() are in their place already. All others are parsed, or copied to their place, from the
// staging area.
void FrameReader::commit(std::size_t bytes) {
  if (direct_) {
    filled_ += bytes;
    received_ += bytes;
    MINIRAY_CHECK(filled_ <= (state_ == State::body ? frame_.body.size() : frame_.entries[buffer_].bytes), filled_);
  } else {
    staged_end_ += bytes;
    MINIRAY_CHECK(staged_end_ <= limits::staging_bytes, staged_end_);
  }
  while (advance()) {
  }
}

bool FrameReader::advance() {
  switch (state_) {
    case State::head:
      return read_head();
    case State::call_head:
      return read_call_head();
    case State::table:
      return read_table();
    case State::held:  // until set_hold_above() allows the frame
      return false;
    case State::body:
      return read_body();
    case State::buffers:
      return read_buffers();
  }
  return false;
}

std::size_t FrameReader::take_staged(std::byte* to, std::size_t most) {
  const std::size_t bytes = std::min(staged(), most);
  if (bytes > 0) std::memcpy(to, staging_.get() + staged_begin_, bytes);
  staged_begin_ += bytes;
  received_ += bytes;
  return bytes;
}

bool FrameReader::read_head() {
  if (staged() < sizeof(FrameHead)) return false;
  received_ = 0;
  take_staged(reinterpret_cast<std::byte*>(&frame_.head), sizeof(FrameHead));
  check_head(frame_.head, message_bytes_max_);
  announced_ = frame_.head.body_bytes;
  filled_ = 0;
  buffer_ = 0;
  state_ = has_call_head(frame_.head.kind) ? State::call_head : State::table;
  return true;
}

bool FrameReader::read_call_head() {
  FrameCallHead call_head;
  if (staged() < sizeof(call_head)) return false;
  take_staged(reinterpret_cast<std::byte*>(&call_head), sizeof(call_head));
  frame_.call = checked(call_head);
  state_ = State::table;
  return true;
}

// The table grows with the entries that arrive, so that a count alone takes no memory.
bool FrameReader::read_table() {
  while (frame_.entries.size() < frame_.head.buffer_count) {
    if (staged() < sizeof(BufferEntry)) return false;
    BufferEntry& entry = frame_.entries.emplace_back();
    take_staged(reinterpret_cast<std::byte*>(&entry), sizeof(BufferEntry));
    count_entry(announced_, entry, message_bytes_max_);
  }
  if (!frame_.entries.empty()) require_memory();
  state_ = announced_ > hold_above_ ? State::held : State::body;
  return true;
}

// A buffer takes memory as its bytes come. One that can never come whole is refused before that.
void FrameReader::require_memory() const {
  std::uint64_t wanted = 0;
  for (const BufferEntry& entry : frame_.entries) wanted += entry.place.in_stream() ? entry.bytes : 0;
  if (!system::has_room(wanted))
    throw MessageTooLarge("the peer announced a message with " + std::to_string(wanted) +
                          " bytes of arrays, and this machine has memory for " +
                          std::to_string(system::available_memory()));
}

void FrameReader::set_hold_above(std::uint64_t bytes) {
  hold_above_ = bytes;
  if (state_ != State::held || announced_ > hold_above_) return;
  state_ = State::body;
  while (advance()) {
  }
}

bool FrameReader::read_body() {
  const std::uint64_t left = frame_.head.body_bytes - filled_;
  if (left > 0 && staged() > 0) {
    const std::size_t bytes = std::min<std::uint64_t>(left, staged());
    if (frame_.body.size() < filled_ + bytes) frame_.body.resize(filled_ + bytes);
    filled_ += take_staged(reinterpret_cast<std::byte*>(frame_.body.data()) + filled_, bytes);
  }
  if (filled_ < frame_.head.body_bytes) return false;
  frame_.buffers.resize(frame_.entries.size());
  filled_ = 0;
  state_ = State::buffers;
  return true;
}

bool FrameReader::read_buffers() {
  for (; buffer_ < frame_.buffers.size(); ++buffer_, filled_ = 0) {
    const BufferEntry& entry = frame_.entries[buffer_];
    Buffer& buffer = frame_.buffers[buffer_];
    if (!entry.place.in_stream()) continue;
    MINIRAY_CHECK(filled_ <= entry.bytes, filled_, entry.bytes);
    const bool in_pages = arrives_in_pages(entry);
    if (!in_pages && buffer.data == nullptr) buffer = Buffer::allocate(entry.bytes);
    if (in_pages && arriving_.data() == nullptr) arriving_ = recycler_.begin(entry.bytes);
    const std::uint64_t here = std::min<std::uint64_t>(staged(), entry.bytes - filled_);
    if (in_pages) arriving_.grow(filled_ + here);
    filled_ += take_staged((in_pages ? arriving_.data() : buffer.data) + filled_, here);
    if (filled_ < entry.bytes) return false;
    if (in_pages) buffer = recycler_.finish(std::exchange(arriving_, {}), entry.bytes);
  }
  finish();
  return true;
}

void FrameReader::check_invariants() const {
  MINIRAY_CHECK(staged_begin_ <= staged_end_ && staged_end_ <= limits::staging_bytes, staged_begin_, staged_end_);
  MINIRAY_CHECK(frame_.entries.size() <= frame_.head.buffer_count, frame_.entries.size(), frame_.head.buffer_count);
  MINIRAY_CHECK(state_ != State::held || announced_ > hold_above_, announced_, hold_above_);
  if (state_ == State::body)
    MINIRAY_CHECK(filled_ <= frame_.head.body_bytes && filled_ <= frame_.body.size() &&
                      frame_.entries.size() == frame_.head.buffer_count,
                  filled_, frame_.head.body_bytes, frame_.body.size());
  if (state_ == State::buffers)
    MINIRAY_CHECK(buffer_ < frame_.buffers.size() && filled_ < frame_.entries[buffer_].bytes &&
                      frame_.body.size() == frame_.head.body_bytes,
                  buffer_, frame_.buffers.size(), filled_, frame_.body.size());
  for (const Frame& frame : finished_)
    MINIRAY_CHECK(frame.body.size() == frame.head.body_bytes && frame.buffers.size() == frame.entries.size(),
                  frame.body.size(), frame.head.body_bytes, frame.buffers.size(), frame.entries.size());
}

void FrameReader::finish() {
  finished_.push_back(std::move(frame_));
  frame_ = Frame();
  state_ = State::head;
}

Frame FrameReader::take_frame() {
  MINIRAY_CHECK(!finished_.empty());
  Frame frame = std::move(finished_.front());
  finished_.pop_front();
  return frame;
}

}  // namespace miniray
