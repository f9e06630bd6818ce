#include "worker/connector.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/check.hpp"
#include "base/shown_text.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"
#include "worker/pending_connection.hpp"

namespace miniray {
namespace {

constexpr std::size_t answer_bytes_max = limits::request_bytes_max;

std::string remedy(int error, Request::Kind kind) {
  if (kind == Request::Kind::group) return std::generic_category().message(error);  // its caller knows the cure
  if (error == ECONNREFUSED || error == ENOENT)
    return "no server listens there. Start one on that machine: python -m miniray.worker_server --port ... --work-fn "
           "..., or see whether it has ended. A server that was started without --host 0.0.0.0 is reached from its own "
           "machine only";
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
    return std::generic_category().message(error) +
           ". Is the host up, and does a firewall let the port through? A cluster with tunnel=True needs no port";
  return std::generic_category().message(error);
}

}  // namespace

Connector::Connector(std::vector<network::Address> addresses, std::string where, const Key& key, const Request& request,
                     std::optional<bool> encrypt)
    : addresses_(std::move(addresses)),
      where_(std::move(where)),
      key_(key),
      encrypt_(encrypt),
      kind_(request.kind),
      request_(write_request(request)),
      unreachable_ms_(request.unreachable_ms) {
  MINIRAY_CHECK(!addresses_.empty());
  if (request_.size() > limits::request_bytes_max)
    throw UsageError("cannot ask " + where_ + " for a worker: the request has " + std::to_string(request_.size()) +
                     " bytes, and the limit is " + std::to_string(limits::request_bytes_max) +
                     ". Give it a smaller environment");
  try {
    try_next_address();
  } catch (const Error&) {
    fail(std::current_exception());
  }
}

// The first failure of two partners is the cause. Otherwise, the other one would wait, and at last be told that its
// partner did not come.
void Connector::fail(std::exception_ptr failure) {
  failure_ = std::move(failure);
  if (partner_ != nullptr && !partner_->done()) partner_->fail(failure_);
}

void Connector::pair_up(Connector& one, Connector& other) {
  one.partner_ = &other;
  other.partner_ = &one;
  for (Connector* const each : {&one, &other})
    if (each->failure_) each->fail(each->failure_);
}

// An address may fail at once, and then the next one is tried. Only the failure of the last one is an error.
void Connector::try_next_address() {
  while (true) {
    try {
      socket_ = network::begin_connect(addresses_[next_address_++]);
      return;
    } catch (const SystemError& error) {
      if (next_address_ == addresses_.size())
        throw Refused("cannot connect to " + where_ + ": " + remedy(error.error_number(), kind_));
    }
  }
}

short Connector::events() const {
  if (step_ == Step::connecting) return POLLOUT;
  return static_cast<short>(POLLIN | (unsent_.empty() ? 0 : POLLOUT));
}

std::string Connector::operation() const {
  if (step_ == Step::connecting) return "connect to " + where_;
  return step_ == Step::proving ? "agree on a key with " + where_ : "get an answer from " + where_;
}

std::string Connector::closed_text() const {
  return kind_ == Request::Kind::group ? "it closed the connection" : std::string(server_closed) + ". Its log says why";
}

void Connector::send(std::string_view bytes) {
  unsent_ += bytes;
  flush();
}

// Sends as much as the socket takes: a request may be larger than a socket's buffer.
void Connector::flush() {
  while (!unsent_.empty()) {
    const iovec piece{unsent_.data(), unsent_.size()};
    const system::Transfer transfer = system::send(socket_.get(), std::span(&piece, 1), {});
    if (transfer.outcome == system::Transfer::Outcome::would_block) return;
    if (transfer.outcome == system::Transfer::Outcome::closed)
      throw Refused("cannot " + operation() + ": " + closed_text());
    unsent_.erase(0, transfer.bytes);
  }
}

bool Connector::receive(std::string& into, std::size_t wanted) {
  std::array<std::byte, 4096> room;
  while (into.size() < wanted) {
    const std::size_t most = std::min(wanted - into.size(), room.size());
    const system::Transfer transfer =
        miniray::receive(socket_.get(), seal_.get(), std::span(room).first(most), system::Block::no, nullptr);
    if (transfer.outcome == system::Transfer::Outcome::would_block) return false;
    if (transfer.outcome == system::Transfer::Outcome::closed)
      throw Refused("cannot " + operation() + ": " + closed_text());
    into.append(reinterpret_cast<const char*>(room.data()), transfer.bytes);
  }
  return true;
}

void Connector::connected() {
  const int error = network::connect_error(socket_.get());
  if (error != 0 && next_address_ < addresses_.size()) return try_next_address();
  if (error != 0) throw Refused("cannot connect to " + where_ + ": " + remedy(error, kind_));
  if (const std::string stranger = network::other_user(socket_.get()); !stranger.empty())
    throw Refused("cannot connect to " + where_ + ": " + stranger);
  if (!system::is_unix_socket(socket_.get())) system::set_no_delay(socket_.get());
  network::notice_deaf_peer(socket_.get(), unreachable_ms_);  // during the handshake, both ends always read
  step_ = Step::proving;
  handshake_.emplace(Handshake::Role::client, key_, sealing_for(socket_.get(), encrypt_));
  send(handshake_->take_output());
  handshake_->prepare();
}

void Connector::advance() {
  try {
    advance_or_throw();
  } catch (const Error&) {
    fail(std::current_exception());
  }
}

void Connector::advance_or_throw() {
  if (step_ == Step::connecting) {
    if (system::poll_one(socket_.get(), POLLOUT, 0) <= 0) return;
    connected();
    if (step_ == Step::connecting) return;  // the next address is being tried
  }
  flush();
  while (step_ == Step::proving) {
    std::string arrived;
    if (!receive(arrived, handshake_->wanted())) {
      handshake_->feed(arrived);
      return;
    }
    handshake_->feed(arrived);
    if (handshake_->refusal())
      throw Refused((kind_ == Request::Kind::group ? "cannot talk to " : "cannot talk to the server at ") + where_ +
                    ": " + handshake_->error_text());
    if (!handshake_->done()) continue;
    std::string proof = handshake_->take_output();
    if (!handshake_->seals()) {
      send(proof + request_);  // together, which saves a system call at both ends
    } else {
      send(proof);
      seal_ = handshake_->take_seal();
      send(seal_->records_of(request_));
    }
    step_ = Step::asking;
  }
  if (answer_bytes_ == 0) {
    if (!receive(input_, sizeof(std::uint32_t))) return;
    std::uint32_t length = 0;
    std::memcpy(&length, input_.data(), sizeof(length));
    if (length == 0 || length > answer_bytes_max)
      throw ProtocolError("the answer from " + where_ + " has an impossible length");
    answer_bytes_ = length;
    input_.clear();
  }
  if (!receive(input_, answer_bytes_)) return;
  read_answer();
}

// A server may have been taken over. What it answers is checked here, where the error names the server.
void Connector::read_answer() {
  std::string refused;
  try {
    Value answer = read_json_text(input_);
    if (const Value* why = answer.find("refused"))
      refused = "the server at " + where_ + " refused: " + shown(why->string(), Colours::escape);
    else if (const std::int64_t pid = kind_ == Request::Kind::worker ? answer["pid"].integer() : 1;
             pid <= 0 || pid > INT32_MAX)  // kill(-1) would end all processes of the user
      throw ProtocolError("a process has no number " + std::to_string(pid));
    answer_ = std::move(answer);
  } catch (const Error& error) {
    throw ProtocolError("the answer from " + where_ + " makes no sense: " + in_quotes(input_) + " (" + error.what() +
                        ")");
  }
  if (!refused.empty()) throw Refused(refused);
}

SealedSocket Connector::take_socket() {
  network::set_blocking(socket_.get(), true);
  return {std::move(socket_), std::move(seal_)};
}

// While a server works on a request, its other requests wait too. So one that is at work extends the time of all.
bool advance_all(std::span<Connector* const> connectors, const ConnectPatience& patience) {
  bool all_done = true, at_work = false;
  for (Connector* connector : connectors) {
    if (!connector->done()) connector->advance();
    all_done = all_done && connector->done();
    at_work = at_work || (!connector->done() && connector->request_sent());
  }
  if (all_done) return true;
  if (!(at_work ? patience.at_work : patience.deadline).passed()) return false;
  for (Connector* connector : connectors) {
    if (connector->done()) continue;
    connector->fail(std::make_exception_ptr(TimeoutError("cannot " + connector->operation() +
                                                         " in time. Is the host up, and does a firewall let the port "
                                                         "through? A cluster with tunnel=True needs no port")));
  }
  return true;
}

void connect_all(std::span<Connector* const> connectors, const Deadline& deadline,
                 const std::function<void()>& on_interrupt) {
  const ConnectPatience patience{deadline};
  while (!advance_all(connectors, patience)) {
    std::vector<pollfd> watched;
    for (const Connector* connector : connectors)
      if (!connector->done()) watched.push_back({connector->fileno(), connector->events(), 0});
    const bool at_work =
        std::ranges::any_of(connectors, [](const Connector* one) { return !one->done() && one->request_sent(); });
    system::poll_many(watched, (at_work ? patience.at_work : deadline).poll_ms(limits::wait_slice_ms));
    if (on_interrupt) on_interrupt();
  }
}

}  // namespace miniray
