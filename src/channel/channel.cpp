#include "miniray/channel.hpp"

#include <cstdlib>

#include "base/check.hpp"
#include "channel/channel_state.hpp"
#include "miniray/error.hpp"

namespace miniray {

namespace {

Fd checked(int socket) {
  if (socket < 0)
    throw UsageError("cannot make a channel of descriptor " + std::to_string(socket) + "; give a connected socket");
  return Fd(socket);
}

// A peer may have sent any descriptor.
Fd checked_end(Fd descriptor) {
  try {
    if (system::is_unix_socket(descriptor.get())) return descriptor;
  } catch (const SystemError&) {  // it is no socket
  }
  throw ProtocolError("the peer sent a descriptor that is no end of a channel");
}

}  // namespace

Channel::Channel(int socket, ChannelOptions options)
    : state_(std::make_unique<State>(checked(socket), std::move(options))) {}
Channel::Channel(const Value& received, ChannelOptions options)
    : state_([&] {
        PassedDescriptor* const end =
            received.kind() == Value::Kind::array ? PassedDescriptor::in(received.array().buffer()) : nullptr;
        if (end == nullptr)
          throw UsageError("a channel was expected in the message, and found was " + received.text() +
                           "; send one end of Channel::pair()");
        if (!end->descriptor.valid())
          throw UsageError("this end of a channel was taken from its message before; keep the Channel that took it");
        if (options.peer == ChannelOptions{}.peer) options.peer = "the other end of a passed channel";
        return std::make_unique<State>(checked_end(std::move(end->descriptor)), std::move(options));
      }()) {}
Channel::Channel(Channel&&) noexcept = default;
Channel& Channel::operator=(Channel&&) noexcept = default;
Channel::~Channel() = default;

std::pair<Channel, Channel> Channel::pair(const ChannelOptions& options) {
  auto [here, there] = system::socket_pair();
  return {Channel(here.release(), options), Channel(there.release(), options)};
}

std::shared_ptr<PassedDescriptor> Channel::release_end() {
  return std::make_shared<PassedDescriptor>(state_->take_socket());
}
void Channel::restore_end(PassedDescriptor& end) {
  if (end.descriptor.valid()) state_->restore_socket(std::move(end.descriptor));
}
Channel::operator Value() && { return PassedDescriptor::as_array(release_end()); }

Array Channel::make_array(DType dtype, Shape shape) const {
  if (state_->may_share()) return miniray::make_array(dtype, std::move(shape));
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(Array::element_count(shape), item_bytes(dtype), &bytes)) throw std::bad_alloc();
  return {dtype, std::move(shape), Buffer::allocate(bytes)};
}

void Channel::send_message(const Message& message) { state_->send(message, State::Patience::wait); }
bool Channel::send_some(const Message& message) { return state_->send(message, State::Patience::none); }
bool Channel::flush_some() { return state_->flush(State::Patience::none); }

Message Channel::receive(const ReceiveOptions& options) { return *state_->receive(options, State::Patience::wait); }
std::optional<Message> Channel::try_receive(std::optional<std::uint64_t> max_size, Lane lane) {
  return state_->receive({max_size, {}, lane}, State::Patience::none);
}

bool Channel::has_unsent() const { return state_->has_unsent(); }
bool Channel::inbox_is_full() const { return state_->inbox_is_full(); }
void Channel::discard_received() { state_->discard_received(); }
void Channel::put_back(Message message) { state_->put_back(std::move(message)); }
void Channel::pump() { state_->pump(); }
void Channel::look_around() { state_->look_around(); }
const Message* Channel::newest() const { return state_->newest(); }
bool Channel::ended() const { return state_->ended(); }
int Channel::end_error() const { return state_->end_error(); }
bool Channel::cut() const { return state_->cut(); }
bool Channel::ready() { return state_->ready(); }
bool Channel::was_dropped(std::int64_t call) { return state_->was_dropped(call); }
void Channel::look_for(Lane lane) { state_->looked_for = lane; }
void Channel::end() { state_->end(); }
void Channel::close() { state_->close(); }
std::uint64_t Channel::arrived() const { return state_->arrived(); }
bool Channel::closed() const { return !state_->socket.valid(); }
int Channel::fileno() const {
  if (closed()) throw UsageError("the channel to " + peer() + " is closed and has no descriptor");
  return state_->fileno();
}
Codec Channel::codec() const { return state_->options.codec; }
const std::string& Channel::peer() const { return state_->options.peer; }
void Channel::check_invariants() const { state_->check_invariants(); }
bool Channel::shares_memory() const { return state_->may_share(); }
bool Channel::sealed() const { return state_->options.seal != nullptr; }
std::string Channel::recent_messages() const { return state_->sent.text("->") + state_->received.text("<-"); }

}  // namespace miniray
