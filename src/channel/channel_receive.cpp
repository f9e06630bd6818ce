// Receiving: bytes become frames as they come, frames become messages in the inbox, and a caller takes them from there.
#include "base/check.hpp"
#include "channel/channel_state.hpp"
#include "channel/trace.hpp"
#include "channel/wait_set.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

std::uint32_t slot_number(const Frame& frame) {
  std::uint32_t number = 0;
  if (frame.body.size() != sizeof(number) || !frame.entries.empty())
    throw ProtocolError("the peer sent a frame about shared memory that is not one");
  std::memcpy(&number, frame.body.data(), sizeof(number));
  return number;
}

}  // namespace

// After what cannot be made sense of, nothing later can be trusted either.
void Channel::State::give_up() {
  if (wait.set != nullptr) wait.set.load()->forget(*this);
  socket.reset();
  reader_ = FrameReader(options.message_bytes_max);
  ring_in_.reset();
  ended_ = true;
}

system::Transfer Channel::State::read_once(system::Block block) {
  MINIRAY_CHECK(socket.valid() && !ended_, socket.get(), ended_);
  try {
    return system::receive(socket.get(), reader_.room(), block, is_local_ ? &arrived_descriptors_ : nullptr);
  } catch (const SystemError&) {
    give_up();
    throw;
  }
}

bool Channel::State::fill(system::Block block) {
  MINIRAY_CHECK(in_use_.load(std::memory_order_relaxed), options.peer);
  if (absorb_ring()) return true;
  if (reader_.holds_back()) return false;
  const system::Transfer transfer = read_once(block);
  switch (transfer.outcome) {
    case system::Transfer::Outcome::would_block:
      return false;
    case system::Transfer::Outcome::interrupted:
      interrupted();
      return false;
    case system::Transfer::Outcome::closed:
      absorb_ring();  // what it wrote last
      ended_ = true;
      end_error_ = transfer.error_number;
      return true;
    case system::Transfer::Outcome::moved:
      break;
  }
  try {
    reader_.commit(transfer.bytes);
  } catch (...) {
    give_up();
    throw;
  }
  absorb_frames();
  return true;
}

void Channel::State::absorb_frames() {
  try {
    if (!reader_.has_frame()) return;
    do {
      absorb_ring();  // what was written there before this frame was sent
      Frame frame = reader_.take_frame();
      absorbed_bytes_ += frame.stream_bytes();
      absorb(std::move(frame));
    } while (reader_.has_frame());
    absorb_ring();  // what had to wait for it: no other wake-up was sent for that
  } catch (...) {
    give_up();
    throw;
  }
}

bool Channel::State::absorb_ring() {
  if (!ring_in_) return false;
  ring_in_->sleep();
  bool any = false;
  try {
    while (const std::optional<std::string_view> frame = ring_in_->take(absorbed_bytes_)) {
      absorb(parse_frame(*frame));
      any = true;
    }
  } catch (...) {
    give_up();
    throw;
  }
  return any;
}

// The socket is looked at now and then: most of what comes to one who spins comes through the ring.
bool Channel::State::spin() {
  if (!ring_in_) return spin_.until([&] { return fill(system::Block::no); });
  constexpr int looks_per_yield = 20, yields_per_read = 4;
  int yields = 0;
  try {
    const bool came = spin_.until([&] {
      ring_in_->watch();
      for (int look = 0; look < looks_per_yield; ++look) {
        if (!ring_in_->empty()) return fill(system::Block::no);
        system::pause();
      }
      return ++yields % yields_per_read == 0 && fill(system::Block::no);
    });
    return absorb_ring() || came;
  } catch (...) {
    absorb_ring();  // nobody was told of what has come
    throw;
  }
}

void Channel::State::absorb(Frame frame) {
  if (frame.head.kind == Message::Kind::share) {
    if (arrived_descriptors_.empty()) throw ProtocolError("the peer announced shared memory without a descriptor");
    slots_in_.share(slot_number(frame), std::move(arrived_descriptors_.front()));
    arrived_descriptors_.erase(arrived_descriptors_.begin());
    return;
  }
  if (frame.head.kind == Message::Kind::unshare) return slots_in_.unshare(slot_number(frame));
  if (frame.head.kind == Message::Kind::bell) return;
  if (frame.head.kind == Message::Kind::ring) {
    if (arrived_descriptors_.empty() || ring_in_) throw ProtocolError("the peer announced a ring that it did not send");
    ring_in_.emplace(std::move(arrived_descriptors_.front()));
    arrived_descriptors_.erase(arrived_descriptors_.begin());
    return;
  }

  MINIRAY_CHECK(frame.buffers.size() == frame.entries.size(), frame.buffers.size(), frame.entries.size());
  if (discards_) return;
  Message message;
  message.kind = frame.head.kind;
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
  } else if (message.kind == Message::Kind::keep) {
    if (message.buffers.size() != 1) throw ProtocolError("the peer wants something kept that is not one buffer");
    const Buffer kept = std::exchange(message.buffers, {}).front();
    kept_.keep(static_cast<std::uint64_t>(message.head.number), kept.bytes());
  } else if (message.kind == Message::Kind::forget) {
    kept_.forget(static_cast<std::uint64_t>(message.head.number));
  } else {
    inbox_.add(std::move(message));
  }
}

// A buffer that is not in the frame.
Buffer Channel::State::buffer_at(const BufferEntry& entry) {
  const std::uint64_t number = entry.place.number();
  if (entry.place.route() == BufferPlace::Route::kept) return kept_.take(number, entry.bytes);
  if (entry.place.route() == BufferPlace::Route::slot) return slots_in_.take(number, entry.bytes);
  if (!options.supply) throw ProtocolError("the peer named a buffer of a worker server, and there is none here");
  return options.supply(number, entry.bytes);
}

bool Channel::State::was_dropped(std::int64_t call) {
  // Short calls are many; one that is taken back within a moment of its beginning may begin all the same.
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
  if (deadline.is_never() && outbox_.empty()) {
    if (fill(system::Block::yes)) return;
  } else {
    const int out = outbox_.empty() ? 0 : POLLOUT;
    const int events =
        system::poll_one(socket.get(), static_cast<short>(POLLIN | out), deadline.poll_ms(limits::wait_slice_ms));
    if (events > 0 && (events & POLLOUT) != 0) flush_if_possible();
    if (events > 0) return;
  }
  interrupted();  // or a slice is over, and a signal may have slipped by
  notice_gone_peer();
}

// The socket may not have told, or may not be able to.
void Channel::State::notice_gone_peer() {
  if (ended_ || !options.peer_is_gone || !options.peer_is_gone()) return;
  while (fill(system::Block::no) && !ended_) {
  }
  ended_ = peer_gone_ = true;
}

void Channel::State::look_around() {
  const InUse use(*this);
  notice_gone_peer();
}

// On the way to receiving: that the peer takes no more must not hide what it has sent.
void Channel::State::flush_if_possible() {
  if (outbox_.empty() || !socket.valid()) return;
  try {
    flush_outbox(Patience::none);
  } catch (const EndOfStream&) {
    drop_outbox();
  }
}

void Channel::State::require_front_fits(const ReceiveOptions& asked) const {
  if (!asked.max_size) return;
  const std::uint64_t bytes = inbox_.empty(asked.lane) ? reader_.announced_bytes() : inbox_.front(asked.lane).size();
  if (bytes > *asked.max_size)
    throw MessageTooLarge("the next message from " + options.peer + " has " + std::to_string(bytes) +
                          " bytes, and recv was told to take " + std::to_string(*asked.max_size) +
                          " at most. It is still there: call recv again with a larger max_size");
}

Message Channel::State::take_front(Lane lane) {
  Message message = inbox_.take(lane);
  received.add(message);
  if (tracing()) trace(Direction::received, options.peer, message, trace_time());
  return message;
}

std::optional<Message> Channel::State::receive(const ReceiveOptions& asked, Patience patience) {
  const InUse use(*this);
  reader_.set_hold_above(asked.max_size.value_or(UINT64_MAX));
  absorb_frames();
  flush_if_possible();
  const Deadline deadline = Deadline::in_seconds(asked.timeout_s);
  const auto arrived = [&] { return fill(system::Block::no); };
  while (inbox_.empty(asked.lane)) {
    if (reader_.holds_back()) require_front_fits(asked);
    if (ended_) fail_ended("receive");
    if (patience == Patience::none) {
      if (!arrived()) return std::nullopt;
      continue;
    }
    if (deadline.passed() && !arrived())
      throw TimeoutError("nothing arrived from " + options.peer + " within " + std::to_string(*asked.timeout_s) +
                         " s; what comes later is not lost");
    if (!inbox_.empty(asked.lane) || ended_ || spin()) continue;
    wait_for_more(deadline);
    spin_.woke();
  }
  require_front_fits(asked);
  return take_front(asked.lane);
}

void Channel::State::pump() {
  const InUse use(*this);
  reader_.set_hold_above(UINT64_MAX);
  absorb_frames();
  flush_if_possible();
  while (!ended_ && inbox_.bytes() < options.inbox_bytes_max && fill(system::Block::no)) {
  }
}

bool Channel::State::ready() {
  const InUse use(*this);
  flush_if_possible();
  while (!has_message() && fill(system::Block::no)) {
  }
  return has_message();
}

}  // namespace miniray
