// The receiving half of a channel: bytes become frames as they arrive, frames become messages in the inbox, and callers
// take messages from the inbox.
#include "base/check.hpp"
#include "base/error_text.hpp"
#include "channel/channel_state.hpp"
#include "channel/trace.hpp"
#include "channel/wait_set.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

std::uint32_t slot_number(const Frame& frame) {
  std::uint32_t number = 0;
  if (frame.body.size() != sizeof(number) || !frame.entries.empty())
    throw ProtocolError("the peer sent a malformed frame about shared memory");
  std::memcpy(&number, frame.body.data(), sizeof(number));
  return number;
}

}  // namespace

// Closes the socket after an error in the stream: nothing behind the error can be parsed. The inbox stays.
void Channel::State::close_broken() {
  if (wait.set != nullptr) wait.set.load()->drop(*this);
  socket.reset();
  reader_ = FrameReader(options.message_bytes_max);
  arrived_descriptors_.clear();
  ring_in_.reset();
  ended_ = true;
}

// In a handler: what the peer has sent cannot be read. Closes the channel, and throws an error that names the peer. No
// memory for a message is an error of the peer that sent it, like any other.
void Channel::State::fail_broken() {
  const std::string announced = std::to_string(reader_.announced_bytes());
  close_broken();
  constexpr std::string_view the_peer = "the peer";
  const auto named = [&](const Error& error) {
    const std::string text = error.what();
    const bool names_it = options.peer != ChannelOptions{}.peer && text.starts_with(the_peer);
    return names_it ? options.peer + text.substr(the_peer.size()) : text;
  };
  try {
    throw;
  } catch (const ProtocolError& error) {
    throw ProtocolError(named(error));
  } catch (const MessageTooLarge& error) {
    throw MessageTooLarge(named(error));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // std::bad_alloc, or std::length_error
    throw MessageTooLarge(options.peer + " sent a message of " + announced +
                          " bytes, and this process has no memory for it (" + error.what() +
                          "). Send less at once; message_bytes_max limits what is accepted");
  }
}

system::Transfer Channel::State::read_once(system::Block block) {
  MINIRAY_CHECK(socket.valid() && !ended_, socket.get(), ended_);
  try {
    return miniray::receive(socket.get(), options.seal.get(), reader_.room(), block,
                            is_local_ ? &arrived_descriptors_ : nullptr);
  } catch (const Error&) {
    fail_broken();
  }
}

bool Channel::State::fill(system::Block block) {
  MINIRAY_CHECK(in_use_.load(std::memory_order_relaxed), options.peer);
  if (absorb_ring()) return true;
  if (reader_.holds_back()) return false;
  system::Transfer transfer{};
  try {
    transfer = read_once(block);
  } catch (const std::bad_alloc&) {  // the reader has no room for what is to come
    fail_broken();
  }
  switch (transfer.outcome) {
    case system::Transfer::Outcome::would_block:
      return false;
    case system::Transfer::Outcome::interrupted:
      interrupted();
      return false;
    case system::Transfer::Outcome::closed:
      absorb_ring();  // the last frames of the peer may be in the ring
      ended_ = true;
      end_error_ = transfer.error_number;
      cut_ = options.seal && !options.seal->ended();
      return true;
    case system::Transfer::Outcome::moved:
      break;
  }
  take_in(transfer.bytes);
  return true;
}

// This also takes what the seal has read already, because the socket does not show it.
void Channel::State::take_in(std::size_t bytes) {
  while (bytes > 0) {
    try {
      reader_.commit(bytes);
    } catch (...) {
      fail_broken();
    }
    absorb_parsed();
    bytes = open_next();
  }
}

std::size_t Channel::State::open_next() {
  if (!options.seal || !socket.valid() || reader_.holds_back() || !options.seal->readable()) return 0;
  try {
    return options.seal->read(reader_.room());
  } catch (...) {
    fail_broken();
  }
}

// A seal may hold bytes that came together with the handshake, or behind a message that was held back.
void Channel::State::absorb_frames() {
  absorb_parsed();
  take_in(open_next());
}

void Channel::State::absorb_parsed() {
  if (!reader_.has_frame()) return;
  try {
    do {
      absorb_ring();  // frames that the peer put into the ring before it sent this one
      Frame frame = reader_.take_frame();
      absorbed_bytes_ += frame.stream_bytes();
      absorb(std::move(frame));
    } while (reader_.has_frame());
    absorb_ring();  // frames of the ring that had to wait for this one; the peer sends no wake-up for them
    // Descriptors come with the first byte of their frame, so few of them can be ahead of it.
    if (arrived_descriptors_.size() > limits::early_descriptors_max)
      throw ProtocolError("the peer sent " + std::to_string(arrived_descriptors_.size()) +
                          " descriptors that belong to no frame");
  } catch (...) {
    fail_broken();
  }
}

// Asks for wake-ups before it looks, so that a frame which the peer puts later wakes this side.
bool Channel::State::absorb_ring() {
  if (!ring_in_) return false;
  ring_in_->sleep();
  std::size_t taken = 0;
  try {
    while (const std::optional<std::string_view> frame = ring_in_->take(absorbed_bytes_)) {
      taken += frame->size();
      absorb(parse_frame(*frame, options.message_bytes_max));
      // The peer may write as fast as this side reads. What was there at first has been taken by now, and for what the
      // peer has put since, it rings the bell.
      static_assert(limits::ring_turn_bytes >= limits::ring_bytes);
      if (taken > limits::ring_turn_bytes) break;
    }
  } catch (...) {
    fail_broken();
  }
  return taken > 0;
}

// Takes the next message without a detour through the inbox, and leaves the frames behind it in the ring. If others
// wait for the socket, or the frame is not such a message, frames go to the inbox, and the function returns false.
bool Channel::State::take_from_ring(const ReceiveOptions& asked, std::optional<Message>& message) {
  if (!ring_in_) return false;
  if (!leaves_frames_in_ring() || asked.max_size || discards_ || !inbox_.empty()) {
    if (ring_in_->watches() || !ring_in_->empty()) absorb_ring();
    return false;
  }
  try {
    const std::optional<std::string_view> bytes = ring_in_->take(absorbed_bytes_);
    if (!bytes) return false;
    if (parse_plain_message(*bytes, options.message_bytes_max, message)) {
      const Lane lane = message->kind == Message::Kind::message ? Lane::messages : Lane::calls;
      if (asked.lane == Lane::any || asked.lane == lane) {
        inbox_.pass();
        return true;
      }
      inbox_.add(std::move(*message));
      message.reset();
    } else {
      absorb(parse_frame(*bytes, options.message_bytes_max));
    }
  } catch (...) {
    fail_broken();
  }
  return false;
}

// Called before this side waits for the socket: receives and spins have turned the wake-ups off.
bool Channel::State::ask_for_wake_ups() {
  if (!ring_in_ || !ring_in_->watches()) return false;
  ring_in_->sleep();
  return !ring_in_->empty() && !inbox_is_full() && absorb_ring();
}

// While it spins, it reads from the socket only now and then, because most frames then come through the ring. If the
// peer is on the same core, it needs this core to answer, and two that yield to each other would stay together. So this
// side sleeps at once, and the kernel wakes it on a free core.
bool Channel::State::spin() {
  if (ring_out_ && ring_out_->reader_waits_for_this_cpu()) {
    spin_.put_off();
    return false;
  }
  if (!ring_in_) return spin_.until([&] { return fill(system::Block::no); });
  int yields = 0;
  ring_in_->watch();
  ring_in_->show_cpu();
  const auto look = [&] {
    return !ring_in_->empty() && (ring_in_->may_take(absorbed_bytes_) || fill(system::Block::no));
  };
  try {
    const bool came =
        spin_.until(look, [&] { return ++yields % limits::yields_per_read == 0 && fill(system::Block::no); });
    return leaves_frames_in_ring() ? came : absorb_ring() || came;
  } catch (...) {
    absorb_ring();  // asks for wake-ups again: watch() has turned them off
    throw;
  }
}

void Channel::State::absorb(Frame frame) {
  if (frame.head.kind == Message::Kind::share) {
    slots_in_.share(slot_number(frame), take_descriptor("shared memory"));
    return;
  }
  if (frame.head.kind == Message::Kind::unshare) return slots_in_.unshare(slot_number(frame));
  if (frame.head.kind == Message::Kind::bell) return;
  if (frame.head.kind == Message::Kind::ring) {
    if (ring_in_) throw ProtocolError("the peer announced a second ring");
    ring_in_.emplace(take_descriptor("a ring"));
    return;
  }

  MINIRAY_CHECK(frame.buffers.size() == frame.entries.size(), frame.buffers.size(), frame.entries.size());
  if (discards_) {
    for (const BufferEntry& entry : frame.entries)
      if (entry.place.has_descriptor()) (void)take_descriptor("a buffer");
    return;
  }
  const Message::Kind kind = frame.head.kind;
  if (options.peer_is_worker &&
      (kind == Message::Kind::drop || kind == Message::Kind::keep || kind == Message::Kind::forget))
    throw ProtocolError("the peer sent a frame of kind " + std::to_string(static_cast<int>(kind)) +
                        ", which only a worker gets");
  Message message;
  message.kind = kind;
  message.head = frame.call;
  message.codec = frame.head.codec;
  message.body = std::move(frame.body);
  message.buffers = std::move(frame.buffers);
  for (std::size_t i = 0; i < frame.entries.size(); ++i) {
    const BufferEntry& entry = frame.entries[i];
    if (!entry.place.in_stream()) message.buffers[i] = buffer_at(entry);
  }
  if (message.kind == Message::Kind::drop) {
    dropped_.insert(message.head.number);
    if (dropped_.size() > limits::dropped_calls_max) dropped_.erase(dropped_.begin());
  } else if (message.kind == Message::Kind::keep) {
    if (message.buffers.size() != 1) throw ProtocolError("the peer asked to keep something that is not one buffer");
    const Buffer kept = std::exchange(message.buffers, {}).front();
    kept_.keep(static_cast<std::uint64_t>(message.head.number), kept.bytes());
  } else if (message.kind == Message::Kind::forget) {
    kept_.drop(static_cast<std::uint64_t>(message.head.number));
  } else {
    inbox_.add(std::move(message));
  }
}

Fd Channel::State::take_descriptor(const char* what) {
  if (arrived_descriptors_.empty())
    throw ProtocolError("the peer announced " + std::string(what) + " without a descriptor");
  Fd descriptor = std::move(arrived_descriptors_.front());
  arrived_descriptors_.erase(arrived_descriptors_.begin());
  return descriptor;
}

// Returns a buffer that is not in the frame itself.
Buffer Channel::State::buffer_at(const BufferEntry& entry) {
  const std::uint64_t number = entry.place.number();
  if (entry.place.route() == BufferPlace::Route::kept) return kept_.take(number, entry.bytes);
  if (entry.place.route() == BufferPlace::Route::slot) return slots_in_.take(number, entry.bytes);
  if (entry.place.route() == BufferPlace::Route::memory)
    return InPlaceMemory::receive(take_descriptor("an array"), number, entry.bytes);
  if (entry.place.route() == BufferPlace::Route::descriptor) {
    if (entry.bytes != 0) throw ProtocolError("the peer sent a descriptor with bytes");
    auto passed = std::make_shared<PassedDescriptor>(take_descriptor("a channel"));
    Passed* const base = passed.get();
    return {std::move(passed), nullptr, 0, base};
  }
  if (!options.supply)
    throw ProtocolError("the peer named a buffer of a worker server, but no worker server started this process");
  return options.supply(number, entry.bytes);
}

bool Channel::State::was_dropped(std::int64_t call) {
  // A worker may have many short calls, so it does not read before each of them. A call that is dropped at the last
  // moment may therefore still begin.
  if (const std::int64_t now = now_ns(); now - looked_for_drops_ns_ > limits::dropped_look_ns) {
    looked_for_drops_ns_ = now;
    pump();
  }
  return !dropped_.empty() && dropped_.erase(call) > 0;
}

void Channel::State::put_back(Message message) {
  const InUse use(*this);
  inbox_.put_back(std::move(message));
}

void Channel::State::discard_received() {
  const InUse use(*this);
  reader_.set_hold_above(UINT64_MAX);
  discards_ = true;
  inbox_.clear();
}

void Channel::State::wait_for_more(const Deadline& deadline) {
  if (deadline.is_never() && !has_unsent()) {
    if (fill(system::Block::yes)) return;
  } else {
    if (ask_for_wake_ups()) return;
    const int out = has_unsent() ? POLLOUT : 0;
    const int events =
        system::poll_one(socket.get(), static_cast<short>(POLLIN | out), deadline.poll_ms(limits::wait_slice_ms));
    if (events > 0 && (events & POLLOUT) != 0) flush_if_possible();
    if (events > 0 && (events & ~POLLOUT) != 0) (void)fill(system::Block::no);
    if (events > 0) return;
  }
  interrupted();  // also after a slice without a signal, because a signal may have come just before the wait
  notice_gone_peer();
}

// Reads what the kernel still has from a peer that has ended. The number of reads is limited, because a child of the
// peer may hold the socket and go on writing.
void Channel::State::read_rest() {
  for (int reads = 0; reads < limits::last_reads_max && !ended_ && !inbox_is_full(); ++reads)
    if (!fill(system::Block::no)) return;
}

// Called by receives that find nothing in their lane. The other lane may fill without end meanwhile.
void Channel::State::require_room_for(Lane lane) const {
  if (!inbox_is_full()) return;
  const bool waits_for_calls = lane == Lane::calls;
  throw InboxFull(std::string("cannot receive a ") + (waits_for_calls ? "call or a reply" : "message") + " from " +
                  options.peer + ": " + (waits_for_calls ? "its messages" : "its calls and replies") +
                  ", which nobody has received, fill the inbox (" + std::to_string(inbox_.bytes()) + " bytes). " +
                  (waits_for_calls ? "Call recv()" : "Wait for the results of its calls") +
                  " first, or raise inbox_bytes_max");
}

// The socket does not show every end: a host may be gone, or a child of the peer may hold the socket open.
void Channel::State::notice_gone_peer() {
  if (ended_ || !options.peer_is_gone || !options.peer_is_gone()) return;
  read_rest();
  ended_ = peer_gone_ = true;
}

void Channel::State::look_around() {
  const InUse use(*this);
  notice_gone_peer();
}

// Called by receives. If the peer reads no more, its last messages must still be received, so this does not throw.
void Channel::State::flush_if_possible() {
  if (!has_unsent() || !socket.valid()) return;
  try {
    flush_outbox(Patience::none);
  } catch (const EndOfStream&) {
    drop_outbox();
    if (options.seal) options.seal->drop_unsent();
  }
}

void Channel::State::require_front_fits(const ReceiveOptions& asked) const {
  if (!asked.max_size) return;
  const std::uint64_t bytes = inbox_.empty(asked.lane) ? reader_.announced_bytes() : inbox_.front(asked.lane).size();
  if (bytes > *asked.max_size)
    throw MessageTooLarge("the next message from " + options.peer + " has " + std::to_string(bytes) +
                          " bytes, and max_size is " + std::to_string(*asked.max_size) +
                          ". The message is kept: call recv again with a larger max_size");
}

// A receive returns this message. Until the next one looks at the ring, frames there need not wake this side.
void Channel::State::note_received(const Message& message) {
  if (ring_in_ && leaves_frames_in_ring()) ring_in_->watch();
  received.add(message);
  if (tracing()) trace(Direction::received, options.peer, message, trace_time());
}

std::optional<Message> Channel::State::receive(const ReceiveOptions& asked, Patience patience) {
  const InUse use(*this);
  reader_.set_hold_above(asked.max_size.value_or(UINT64_MAX));
  absorb_frames();
  flush_if_possible();
  const Deadline deadline = Deadline::in_seconds(asked.timeout_s);
  // The peer may send to the other lane without end, so this side does not read until nothing is left.
  int reads = 0;
  const auto arrived = [&] { return reads++ < limits::late_reads_max && fill(system::Block::no); };
  std::optional<Message> message;
  while (inbox_.empty(asked.lane)) {
    if (take_from_ring(asked, message)) break;
    if (!inbox_.empty(asked.lane)) break;
    require_room_for(asked.lane);
    if (reader_.holds_back()) require_front_fits(asked);
    if (postponed_) std::rethrow_exception(std::exchange(postponed_, nullptr));
    if (ended_) fail_ended("receive");
    if (patience == Patience::none) {
      if (!arrived()) return std::nullopt;
      continue;
    }
    if (deadline.passed() && !arrived())
      throw TimeoutError("nothing arrived from " + options.peer + " within " + number_text(*asked.timeout_s) +
                         " s; a message that arrives later is not lost");
    if (!inbox_.empty(asked.lane) || ended_ || spin()) continue;
    wait_for_more(deadline);
    spin_.woke();
  }
  if (!message) {
    require_front_fits(asked);
    message = inbox_.take(asked.lane);
  }
  note_received(*message);
  return message;
}

void Channel::State::pump() {
  const InUse use(*this);
  reader_.set_hold_above(UINT64_MAX);
  absorb_frames();
  flush_if_possible();
  read_rest();
}

bool Channel::State::ready() {
  const InUse use(*this);
  flush_if_possible();
  for (int reads = 0; reads < limits::late_reads_max && !has_message() && !inbox_is_full(); ++reads)
    if (!fill(system::Block::no)) break;
  return has_message() || inbox_is_full();  // receive() says what fills the inbox
}

}  // namespace miniray
