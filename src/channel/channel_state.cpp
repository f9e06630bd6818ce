#include "channel/channel_state.hpp"

#include <cerrno>
#include <cstdlib>

#include "base/check.hpp"
#include "channel/trace.hpp"
#include "channel/wait_set.hpp"
#include "miniray/error.hpp"
#include "wire/in_place_memory.hpp"

namespace miniray {
namespace {

std::atomic<std::uint64_t> closed_channels = 0;

}  // namespace

int spin_budget_us(const std::optional<int>& asked) {
  if (asked) return *asked;
  if (const char* setting = std::getenv("MINIRAY_SPIN_US")) return std::max(0, std::atoi(setting));
  return system::usable_cpus() > 1 ? limits::spin_us : 0;
}

std::uint64_t channel_departures() { return closed_channels.load(std::memory_order_relaxed); }

void Channel::State::require_ours() const {
  if (generation_ != process_generation())
    throw UsageError("the channel to " + options.peer +
                     " belongs to the process that made it, and this process is a child of that one. Start a worker in "
                     "this process, or use its handle if it is a worker itself");
}

Channel::State::InUse::InUse(State& state) : state_(state) {
  state.require_ours();
  if (state.in_use_.exchange(true, std::memory_order_acquire))
    throw UsageError(
        "the channel to " + state.options.peer +
        " is in use by another thread (or by the code that a signal interrupted). Give each thread a worker "
        "of its own, or hold a lock around the calls");
}

Channel::State::InUse::~InUse() {
  WaitSet* const set = state_.wait.set;
  // A channel whose reader is not woken by frames in the ring must be looked at once more before the set sleeps.
  const bool watches = state_.ring_in_ && state_.ring_in_->watches();
  if (watches && state_.polled_) state_.ring_in_->sleep();  // another thread has asked for the descriptor meanwhile
  if (set != nullptr && (state_.has_message() || state_.has_unsent() || watches)) set->mark_pending(state_);
  if (state_.options.check_invariants) state_.check_invariants();
  MINIRAY_CHECK(state_.in_use_.load(std::memory_order_relaxed), state_.options.peer);
  state_.in_use_.store(false, std::memory_order_release);
}

// Between its calls, a channel usually leaves frames in the ring until the next call looks. Whoever waits for the
// socket has to be woken by them. If another thread is in a call, that call asks for the wake-ups when it ends.
int Channel::State::fileno() {
  if (!polled_.exchange(true) && generation_ == process_generation() && !in_use_.exchange(true)) {
    if (ring_in_) ring_in_->sleep();
    in_use_.store(false);
  }
  return socket.get();
}

Channel::State::State(Fd connected, ChannelOptions given)
    : options(std::move(given)),
      socket(std::move(connected)),
      is_local_(system::is_unix_socket(socket.get())),
      may_share_(is_local_ && options.shared_memory),
      generation_(process_generation()),
      reader_(options.message_bytes_max),
      spin_(spin_budget_us(options.spin_us)) {
  if (!is_local_) system::set_no_delay(socket.get());
  if (options.seal) options.seal->read_ahead();
  // Without peer_is_gone, a blocking receive has nothing to check now and then, and need not wake up. So thousands of
  // idle workers cost no CPU time.
  if (options.peer_is_gone) system::set_receive_timeout_ms(socket.get(), limits::wait_slice_ms);
  (void)tracing();  // the trace file is opened here, where failure can be reported
}

Channel::State::~State() {
  send_last_record();
  closed_channels.fetch_add(1, std::memory_order_relaxed);
  InPlaceMemory::on_channel_end();
  if (WaitSet* const set = wait.set) set->drop(*this);
}

// A sealed stream has a last record, so that its end can be told from a cut. It is sent if the socket takes it at once.
void Channel::State::send_last_record() {
  if (!options.seal || generation_ != process_generation() || !socket.valid() || !outbox_.empty()) return;
  try {
    options.seal->add_end();
    (void)miniray::send(socket.get(), options.seal.get(), {}, {});
  } catch (const Error&) {  // the peer is gone
  }
}

void Channel::State::end() {
  const InUse use(*this);
  if (!socket.valid()) return;
  flush_if_possible();
  send_last_record();
  system::shut_down_writing(socket.get());
  drop_outbox();
  if (options.seal) options.seal->drop_unsent();
  ring_out_.reset();
}

void Channel::State::close() {
  if (generation_ == process_generation() && in_use_.load())
    throw UsageError("cannot close the channel to " + options.peer +
                     ": it is in use by another thread. Close it from that thread, or hold a lock around the calls");
  send_last_record();
  if (generation_ == process_generation() && socket.valid()) system::shut_down(socket.get());  // wakes the peer
  if (WaitSet* const set = wait.set) set->drop(*this);
  if (socket.valid()) InPlaceMemory::on_channel_end();
  socket.reset();
  ended_ = true;
  slots_out_ = {};
  slots_in_ = {};  // received buffers keep their slots mapped
  ring_out_.reset();
  ring_in_.reset();
  arrived_descriptors_.clear();
}

// Both sides count what they have sent and received. A new owner begins at zero, so the channel must be unused.
Fd Channel::State::take_socket() {
  const InUse use(*this);
  if (!socket.valid())
    throw UsageError("cannot send the channel to " + options.peer + ": it was " +
                     (sent_away_ ? "sent before" : "closed here") + ". Make another pair");
  if (!is_local_)
    throw UsageError("cannot send the channel to " + options.peer + ": it is a TCP connection; send Channel::pair()");
  if (written_bytes_ != 0 || absorbed_bytes_ != 0 || reader_.pending_bytes() != 0 || inbox_.arrived() != 0 || ended_)
    throw UsageError("cannot send the channel to " + options.peer +
                     ": it was used here. Send an end of Channel::pair() before you send or receive through it");
  if (WaitSet* const set = wait.set) set->drop(*this);
  ended_ = sent_away_ = true;
  return std::move(socket);
}

void Channel::State::restore_socket(Fd taken) {
  MINIRAY_CHECK(sent_away_ && !socket.valid());
  socket = std::move(taken);
  ended_ = sent_away_ = false;
}

void Channel::State::check_invariants() const {
  reader_.check_invariants();
  inbox_.check_invariants();
  kept_.check_invariants();
  slots_in_.check_invariants();
  slots_out_.check_invariants();
  if (ring_in_) ring_in_->check_invariants();
  if (ring_out_) ring_out_->check_invariants();
  if (const WaitSet* const set = wait.set) set->check_invariants();

  // Each sign of the end implies ended_.
  MINIRAY_CHECK(socket.valid() || ended_, options.peer);
  MINIRAY_CHECK(!peer_gone_ || ended_, options.peer);
  MINIRAY_CHECK(end_error_ == 0 || ended_, options.peer, end_error_);

  // Descriptors of the outbox go with the next byte of it, which is written before their own frames.
  MINIRAY_CHECK(outbox_.empty() ? outbox_written_ == 0 : outbox_written_ < outbox_.size(), outbox_written_,
                outbox_.size());
  MINIRAY_CHECK(outbox_descriptors_.size() <= limits::descriptors_per_message_max &&
                    (outbox_descriptors_.empty() || !outbox_.empty()),
                outbox_descriptors_.size(), outbox_.size());
  for (const Fd& descriptor : outbox_descriptors_) MINIRAY_CHECK(descriptor.valid());

  // Only a Unix-domain socket passes descriptors, which shared memory needs.
  for (const Fd& descriptor : arrived_descriptors_) MINIRAY_CHECK(descriptor.valid());
  MINIRAY_CHECK(!is_local_ || !options.seal, options.peer);
  MINIRAY_CHECK(is_local_ || (!may_share_ && !ring_in_ && arrived_descriptors_.empty()), options.peer);
  MINIRAY_CHECK(!ring_out_ || (may_share_ && small_frames_ > limits::ring_after_frames), small_frames_);
}

void Channel::State::interrupted() {
  if (options.on_interrupt) options.on_interrupt();
}

void Channel::State::fail_ended(const char* operation) const {
  if (sent_away_)
    throw EndOfStream("cannot " + std::string(operation) + ": this end of the channel was sent to another process");
  if (!socket.valid())
    throw EndOfStream("cannot " + std::string(operation) + ": the channel to " + options.peer +
                      " was closed by this process");
  if (cut_)
    throw EndOfStream("the connection to " + options.peer +
                      " was cut: it ended without the record that ends a sealed stream. Its process or its host has "
                      "died, or somebody has cut the network");
  if (reader_.pending_bytes() > 0) throw EndOfStream(options.peer + " was cut off in the middle of a message");
  throw EndOfStream(options.peer + " closed the channel; there are no more messages");
}

}  // namespace miniray
