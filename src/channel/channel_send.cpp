// The sending half of a channel: frames are gathered from the caller's memory. The channel keeps the rest of a frame
// that a call could not finish, so that the next frame begins where the peer expects it.
#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "channel/channel_state.hpp"
#include "channel/trace.hpp"
#include "channel/wait_set.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// The body of a frame about shared memory is the number of a slot.
void append_slot_frame(std::string& out, Message::Kind kind, std::uint32_t number) {
  FrameHead head;
  head.kind = kind;
  head.body_bytes = sizeof(number);
  append_frame_prefix(out, head, {}, {});
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void check_sendable(const Message& message, std::uint64_t message_bytes_max) {
  if (message.body.size() > limits::body_bytes_max || message.size() > message_bytes_max)
    throw MessageTooLarge("cannot send a message of " + std::to_string(message.size()) +
                          " bytes (body: " + std::to_string(message.body.size()) + "); the limits are " +
                          std::to_string(message_bytes_max) + " and " + std::to_string(limits::body_bytes_max) +
                          ". Send it in parts, or as arrays");
  if (message.buffers.size() > limits::buffers_max)
    throw MessageTooLarge("cannot send " + std::to_string(message.buffers.size()) +
                          " arrays in one message; the limit is " + std::to_string(limits::buffers_max) +
                          ". Stack them, or send them in parts");
}

}  // namespace

void Channel::State::Outgoing::append(const void* data, std::size_t size) {
  if (size > 0) pieces.push_back({const_cast<void*>(data), size});
}

void Channel::State::Outgoing::wrote(std::size_t bytes) {
  begun = begun || bytes > 0;
  if (bytes > 0) descriptors.clear();
  while (bytes > 0) {
    MINIRAY_CHECK(piece < pieces.size(), bytes);
    iovec& current = pieces[piece];
    const std::size_t taken = std::min(bytes, current.iov_len);
    current.iov_base = static_cast<std::byte*>(current.iov_base) + taken;
    current.iov_len -= taken;
    bytes -= taken;
    if (current.iov_len == 0) ++piece;
  }
}

bool Channel::State::write_some(Outgoing& outgoing) {
  MINIRAY_CHECK(in_use_.load(std::memory_order_relaxed) && socket.valid(), options.peer, socket.get());
  while (!outgoing.done() || (options.seal && options.seal->has_unsent())) {
    const system::Transfer transfer =
        miniray::send(socket.get(), options.seal.get(), outgoing.rest(), outgoing.descriptors);
    switch (transfer.outcome) {
      case system::Transfer::Outcome::moved:
        written_bytes_ += transfer.bytes;
        outgoing.wrote(transfer.bytes);
        break;
      case system::Transfer::Outcome::would_block:
        return false;
      case system::Transfer::Outcome::interrupted:
        interrupted();
        break;
      case system::Transfer::Outcome::closed:
        fail_closed();
    }
  }
  return true;
}

void Channel::State::fail_closed() {
  read_rest();  // the last messages of the peer may say why it closed
  fail_ended("send");
}

// Waits once for room in the socket, and reads what arrives meanwhile: the peer may itself be sending, and read nothing
// until this side has read.
void Channel::State::wait_for_room() {
  if (ask_for_wake_ups()) return;
  const int events = system::poll_one(socket.get(), POLLIN | POLLOUT, limits::wait_slice_ms);
  if (events <= 0) {
    interrupted();
    notice_gone_peer();
    if (ended_) fail_ended("send");
    return;
  }
  if ((events & (POLLIN | POLLHUP | POLLERR)) == 0 || ended_) return;
  if (discards_ || (!inbox_is_full() && inbox_.bytes() + reader_.pending_bytes() < options.inbox_bytes_max)) {
    fill(system::Block::no);
    return;
  }
  if ((events & POLLOUT) != 0) return;
  throw InboxFull("cannot send to " + options.peer + ": it reads nothing before its own messages are received, and " +
                  std::to_string(inbox_.bytes() + reader_.pending_bytes()) +
                  " bytes of these fill the inbox. Call recv() between sends, or raise inbox_bytes_max");
}

bool Channel::State::write(Outgoing& outgoing, Patience patience) {
  try {
    while (!write_some(outgoing)) {
      if (patience == Patience::none) return false;
      wait_for_room();
    }
  } catch (const EndOfStream&) {
    throw;
  } catch (...) {
    if (outgoing.begun) keep_rest(outgoing);  // the peer has the beginning of the frame, and must get the rest
    throw;
  }
  return true;
}

// Of a sealed frame, the seal may have the whole rest already.
void Channel::State::keep_rest(const Outgoing& outgoing) {
  MINIRAY_CHECK(!outgoing.done() || options.seal, outgoing.piece, outgoing.pieces.size());
  for (const iovec& piece : outgoing.rest()) outbox_.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
}

void Channel::State::drop_outbox() {
  outbox_.clear();
  outbox_written_ = 0;
  outbox_descriptors_.clear();
}

bool Channel::State::flush(Patience patience) {
  const InUse use(*this);
  if (has_unsent() && !socket.valid()) fail_ended("send");
  reader_.set_hold_above(UINT64_MAX);
  absorb_frames();
  const bool flushed = flush_outbox(patience);
  if (!flushed && peer_gone_) fail_ended("send");  // the socket of such a peer never reports an error
  return flushed;
}

bool Channel::State::flush_outbox(Patience patience) {
  if (!has_unsent()) return true;
  MINIRAY_CHECK(outbox_.empty() || outbox_written_ < outbox_.size(), outbox_written_, outbox_.size());
  Outgoing rest;
  rest.append(outbox_.data() + outbox_written_, outbox_.size() - outbox_written_);
  for (const Fd& descriptor : outbox_descriptors_) rest.descriptors.push_back(descriptor.get());
  // Of a sealed stream, the seal may have everything, and still have to write it.
  const auto account = [&] {
    if (rest.done()) return drop_outbox();
    outbox_written_ = outbox_.size() - rest.pieces[rest.piece].iov_len;
    if (rest.begun) outbox_descriptors_.clear();
  };
  bool flushed = false;
  try {
    while (!(flushed = write_some(rest)) && patience == Patience::wait) wait_for_room();
  } catch (...) {
    account();
    throw;
  }
  account();
  MINIRAY_CHECK(flushed == !has_unsent(), outbox_written_, outbox_.size());
  return flushed;
}

// A channel, or another descriptor, inside the message must be there, only once, and be able to reach the peer.
void Channel::State::check_passed(const Message& message) const {
  std::vector<const PassedDescriptor*> found;
  for (const Buffer& buffer : message.buffers) {
    const PassedDescriptor* const passed = PassedDescriptor::in(buffer);
    if (passed == nullptr) continue;
    if (!is_local_)
      throw UsageError("cannot send a channel to " + options.peer +
                       ": it is reached through TCP, and a channel can be passed only to a process of this machine. "
                       "Send messages between the two through this process, or run both workers here");
    if (!passed->descriptor.valid() || std::ranges::find(found, passed) != found.end())
      throw UsageError("cannot send a channel to " + options.peer +
                       ": this end was sent before. Each end of Channel::pair() is sent once; make another pair");
    found.push_back(passed);
  }
  if (found.size() > limits::descriptors_per_message_max)
    throw MessageTooLarge("cannot send " + std::to_string(found.size()) + " channels in one message; the limit is " +
                          std::to_string(limits::descriptors_per_message_max) + ". Send them in several messages");
}

BufferPlace Channel::State::place_buffer(const Buffer& buffer, Placement& placement,
                                         std::vector<std::uint32_t>& unshared) {
  if (PassedDescriptor* const given = PassedDescriptor::in(buffer)) {
    placement.passed.push_back({{}, nullptr, given});
    return BufferPlace::descriptor();
  }
  // While the outbox is not empty, the caller does not wait, and the descriptors of new slots would pile up.
  if (!may_share_ || !outbox_.empty() || buffer.size < limits::shared_buffer_bytes_min ||
      placement.descriptors() >= limits::descriptors_per_message_max)
    return {};
  if (buffer.passed != nullptr) {
    auto* const memory = static_cast<InPlaceMemory*>(buffer.passed);
    if (std::optional<InPlaceMemory::Lent> lent = memory->lend(buffer.bytes())) {
      placement.passed.push_back({std::move(lent->memory), memory, nullptr});
      return BufferPlace::memory(lent->offset);
    }
  }
  const std::uint32_t slot = slots_out_.place(buffer.bytes(), placement.shared, unshared);
  return slot != 0 ? BufferPlace::slot(slot) : BufferPlace();
}

// Puts the message's buffers where they travel: into shared memory, or into the stream. Descriptors that must be passed
// come first, because there is room for only a few.
Channel::State::Placement Channel::State::place_buffers(const Message& message) {
  Placement placement;
  std::vector<std::uint32_t> unshared;
  placement.entries.reserve(message.buffers.size());
  std::size_t given_left = 0;
  for (const Buffer& buffer : message.buffers) given_left += PassedDescriptor::in(buffer) != nullptr ? 1 : 0;
  for (std::size_t i = 0; i < message.buffers.size(); ++i) {
    const Buffer& buffer = message.buffers[i];
    BufferEntry& entry = placement.entries.emplace_back(BufferEntry{buffer.size, {}});
    const bool is_given = PassedDescriptor::in(buffer) != nullptr;
    if (i < message.places.size() && !message.places[i].in_stream())
      entry.place = message.places[i];
    else if (is_given || placement.descriptors() + given_left < limits::descriptors_per_message_max)
      entry.place = place_buffer(buffer, placement, unshared);
    if (is_given) --given_left;
  }
  for (const std::uint32_t number : unshared) append_slot_frame(placement.announcement, Message::Kind::unshare, number);
  for (const SlotWriter::Shared& slot : placement.shared)
    append_slot_frame(placement.announcement, Message::Kind::share, slot.number);
  return placement;
}

// Called if no byte of the message was sent. The slots become free again, but they exist, so the frames that announce
// them are still sent.
void Channel::State::undo_placement(Placement& placement) {
  MINIRAY_CHECK(outbox_.empty() && outbox_descriptors_.empty(), outbox_.size(), outbox_descriptors_.size());
  for (const BufferEntry& entry : placement.entries)
    if (may_share_ && entry.place.route() == BufferPlace::Route::slot)
      slots_out_.take_back(static_cast<std::uint32_t>(entry.place.number()));
  for (PassedWithFrame& passed : placement.passed)
    if (passed.memory != nullptr) passed.memory->take_back();
  outbox_ += placement.announcement;
  for (SlotWriter::Shared& slot : placement.shared) outbox_descriptors_.push_back(std::move(slot.memory));
}

// The frame's first byte was not written, so its descriptors wait with it.
void Channel::State::keep_descriptors(Placement& placement) {
  for (SlotWriter::Shared& slot : placement.shared) outbox_descriptors_.push_back(std::move(slot.memory));
  for (PassedWithFrame& passed : placement.passed) outbox_descriptors_.push_back(passed.take());
}

// Creates the ring for this direction, if the system has room for one, and announces it. The peer maps it when it reads
// the announcement.
void Channel::State::share_ring(Patience patience) {
  MINIRAY_CHECK(may_share_ && !ring_out_ && outbox_.empty(), may_share_, outbox_.size());
  std::optional<std::pair<RingWriter, Fd>> made = RingWriter::make();
  if (!made) return;
  std::string announcement;
  append_frame_prefix(announcement, {.kind = Message::Kind::ring}, {}, {});
  Outgoing outgoing;
  outgoing.append(announcement.data(), announcement.size());
  outgoing.descriptors.push_back(made->second.get());
  if (!write(outgoing, patience)) {
    keep_rest(outgoing);
    if (!outgoing.begun) outbox_descriptors_.push_back(std::move(made->second));
  }
  ring_out_.emplace(std::move(made->first));
}

// A program may have closed all of its descriptors, including this socket. A send through the socket would notice; a
// send through the ring has to check.
bool Channel::State::socket_is_there(std::int64_t now) {
  if (now - socket_seen_ns_ < limits::socket_look_ns) return true;
  socket_seen_ns_ = now;
  try {
    return system::is_unix_socket(socket.get());
  } catch (const SystemError&) {
    return false;
  }
}

bool Channel::State::send_through_ring(std::span<const iovec> frame) {
  MINIRAY_CHECK(ring_out_ && outbox_.empty(), outbox_.size());
  const std::int64_t now = now_ns();
  if (!socket_is_there(now)) return false;
  const RingWriter::Outcome outcome = ring_out_->put(written_bytes_, frame, now);
  if (outcome == RingWriter::Outcome::put_and_reader_sleeps) ring_bell();
  return outcome != RingWriter::Outcome::not_put;
}

void Channel::State::ring_bell() {
  std::string bell;
  append_frame_prefix(bell, {.kind = Message::Kind::bell}, {}, {});
  const iovec piece{bell.data(), bell.size()};
  system::Transfer transfer{};
  do {
    transfer = system::send(socket.get(), std::span(&piece, 1), {});  // a socket with a ring is not sealed
  } while (transfer.outcome == system::Transfer::Outcome::interrupted);
  if (transfer.outcome == system::Transfer::Outcome::closed) fail_closed();
  if (transfer.outcome == system::Transfer::Outcome::would_block) return;  // a full socket wakes the peer anyway
  written_bytes_ += transfer.bytes;
  outbox_.append(bell, transfer.bytes);
}

// Most messages are small and without buffers, and need none of what send() does about those. Returns false if the
// frame has to go through the socket.
bool Channel::State::send_without_buffers(const Message& message) {
  const PlainPrefix prefix(message);
  const std::array<iovec, 2> frame{{{const_cast<std::byte*>(prefix.bytes().data()), prefix.bytes().size()},
                                    {const_cast<char*>(message.body.data()), message.body.size()}}};
  try {
    return send_through_ring(frame);
  } catch (...) {
    ring_out_->wake_failed();
    throw;
  }
}

bool Channel::State::send(const Message& message, Patience patience) {
  check_sendable(message, options.message_bytes_max);
  const InUse use(*this);
  if (!socket.valid()) fail_ended("send");
  reader_.set_hold_above(UINT64_MAX);  // a send may have to read, even if the last receive had a max_size
  absorb_frames();
  if (!message.buffers.empty()) check_passed(message);
  const timespec begun = tracing() ? trace_time() : timespec{};
  // The kernel takes few descriptors at once. If the outbox has as many, this send waits for it.
  const bool crowded = 2 * outbox_descriptors_.size() > limits::descriptors_per_message_max;
  flush_outbox(crowded ? Patience::wait : patience);

  const bool small = may_share_ && outbox_.empty() && message.size() <= limits::ring_frame_bytes_max;
  if (small && small_frames_++ == limits::ring_after_frames) share_ring(patience);
  bool may_use_ring = small && ring_out_;
  if (may_use_ring && message.buffers.empty()) {
    if (send_without_buffers(message)) {
      sent.add(message);
      if (tracing()) trace(Direction::sent, options.peer, message, begun);
      return !has_unsent();  // part of a bell may be unsent
    }
    may_use_ring = false;  // the ring has been told that the frame comes through the socket
  }
  Placement placement = place_buffers(message);
  FrameHead head;
  head.kind = message.kind;
  head.codec = message.codec;
  head.buffer_count = static_cast<std::uint32_t>(placement.entries.size());
  head.body_bytes = message.body.size();
  MINIRAY_CHECK(placement.entries.size() == message.buffers.size(), placement.entries.size(), message.buffers.size());
  MINIRAY_CHECK(placement.shared.empty() || !placement.announcement.empty(), placement.shared.size());
  prefix_ = placement.announcement;
  append_frame_prefix(prefix_, head, message.head, placement.entries);
  const bool one_piece = message.body.size() <= limits::copied_body_bytes_max;
  if (one_piece) prefix_ += message.body;
  Outgoing outgoing;
  for (const SlotWriter::Shared& slot : placement.shared) outgoing.descriptors.push_back(slot.memory.get());
  for (const PassedWithFrame& passed : placement.passed) outgoing.descriptors.push_back(passed.number());
  outgoing.append(prefix_.data(), prefix_.size());
  if (!one_piece) outgoing.append(message.body.data(), message.body.size());
  for (std::size_t i = 0; i < placement.entries.size(); ++i) {
    if (placement.entries[i].place.in_stream()) outgoing.append(message.buffers[i].data, message.buffers[i].size);
  }

  bool finished = false;
  try {
    may_use_ring = may_use_ring && placement.announcement.empty() && placement.passed.empty();
    finished = outbox_.empty() && ((may_use_ring && send_through_ring(outgoing.pieces)) || write(outgoing, patience));
  } catch (...) {
    if (!outgoing.begun)
      undo_placement(placement);
    else
      for (PassedWithFrame& passed : placement.passed) (void)passed.take();
    if (ring_out_) ring_out_->wake_failed();
    throw;
  }
  if (!finished) {  // only if the caller does not wait
    keep_rest(outgoing);
    if (!outgoing.begun) keep_descriptors(placement);
  }
  for (PassedWithFrame& passed : placement.passed) (void)passed.take();  // the peer has it now
  MINIRAY_CHECK(finished || has_unsent(), outgoing.piece, outgoing.pieces.size());
  sent.add(message);
  if (tracing()) trace(Direction::sent, options.peer, message, begun);
  return !has_unsent();  // part of a bell may be unsent even if the message is finished
}

}  // namespace miniray
