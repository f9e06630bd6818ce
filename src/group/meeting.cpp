#include "group/meeting.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "miniray/error.hpp"
#include "wire/passed.hpp"
#include "worker/connector.hpp"
#include "worker/pending_connection.hpp"
#include "worker/pending_limits.hpp"

namespace miniray {
namespace {

// The lines that a rank may have to another one.
enum class LineKind : std::uint8_t { life, data, memory };
constexpr std::array<const char*, 3> line_names{"life", "data", "memory"};
using LineId = std::pair<std::size_t, LineKind>;  // the other rank, and the line to it

// Thrown if create_group() says that the ranks cannot meet.
struct Verdict {
  std::string text;
};

// Where a rank listens, as the coordinator's map has it.
struct Place {
  std::size_t node;
  bool at_home;  // it is on the coordinator's machine, which others may be unable to connect to
  std::vector<std::string> hosts;
  int port;
  std::string local;  // the name of its socket for the ranks of its machine
};

// Strangers may connect too. They leave descriptors for the ranks.
std::size_t places_for_pending() {
  return std::min<std::size_t>(limits::pending_connections_max, system::descriptor_limit() / 4);
}

std::string ports_text(int first_port, int last_port) {
  return "the ports " + std::to_string(first_port) + " to " + std::to_string(last_port);
}

// Listens at this address, on any free port or on one of a range.
Fd listen_in_range(const std::string& host, int first_port, int last_port) {
  const network::Address any = network::resolve(host, 0).front();
  if (first_port == 0) return network::listen(any);
  for (int port = first_port; port <= last_port; ++port) {
    try {
      return network::listen(network::resolve(host, port).front());
    } catch (const SystemError& error) {
      if (error.error_number() != EADDRINUSE) throw;
    }
  }
  throw GroupBroken("a rank cannot listen: on " + network::host_name() + ", all of " +
                    ports_text(first_port, last_port) + " are taken. Give the group a larger range");
}

// The key is sent as an array, because a trace of messages does not show the content of arrays.
Key read_key(const Array& key) {
  const std::span<const std::byte> bytes = key.buffer().bytes();
  return Key::from_hex(to_hex({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}),
                       "the invitation to a group");
}

// Connects a rank with the others. Every rank accepts and connects in the same loop, so none waits for another in turn.
class Meeting {
 public:
  Meeting(Handle& handle, const Value& invitation, std::size_t rank, const std::vector<GroupMember>& members,
          const std::function<void()>& on_interrupt)
      : handle_(handle),
        invitation_(invitation),
        rank_(rank),
        members_(members),
        on_interrupt_(on_interrupt),
        key_(read_key(invitation["key"].array())),
        encrypt_(invitation["encrypt"].boolean() ? std::nullopt : std::optional(false)),
        unreachable_ms_(static_cast<int>(
            std::clamp<std::int64_t>(invitation["unreachable_ms"].integer(), limits::unreachable_min_ms, INT32_MAX))) {}

  void listen();
  void read_map(const Value& map);
  void connect();
  [[nodiscard]] Met take();

 private:
  // A connection that has not said yet what it is for.
  struct Pending {
    PendingLimits::Number number;
    std::string address;
    PendingConnection connection;
  };
  struct Dialled {
    LineId line;
    std::unique_ptr<Connector> connector;
  };
  [[nodiscard]] bool leads(std::size_t rank) const { return nodes_.ranks[places_[rank].node].front() == rank; }
  [[nodiscard]] bool dials(std::size_t other) const;
  void expect(std::size_t other, LineKind line);
  void dial(LineId line);
  void accept_all(int listener);
  void make_room(PendingLimits::Number number);
  bool advance_pending(Pending& pending);
  bool read_pending(PendingConnection& pending);
  void advance_dialled(Dialled& dialled);
  void add_line(LineId line, SealedSocket socket);
  void receive_memory();
  [[nodiscard]] bool complete() const;
  void wait();
  void look_around();
  [[noreturn]] void fail_late() const;
  [[nodiscard]] std::string name_of(std::size_t rank) const {
    return "rank " + std::to_string(rank) + " (" + members_[rank].name + ")";
  }

  Handle& handle_;
  const Value& invitation_;
  std::size_t rank_;
  const std::vector<GroupMember>& members_;
  const std::function<void()>& on_interrupt_;
  Key key_;
  std::optional<bool> encrypt_;
  int unreachable_ms_;
  Fd listener_, local_listener_;
  std::vector<Place> places_;
  GroupNodes nodes_;
  std::set<LineId> expected_;  // lines that others connect
  std::vector<Dialled> dialled_;
  std::vector<Pending> pending_;
  PendingLimits pending_limits_{places_for_pending(), places_for_pending()};
  PendingLimits::Number last_pending_ = 0;
  std::map<LineId, Channel> lines_;
  Fd memory_;
  Deadline deadline_ = Deadline::never();
};

// If the coordinator reaches this rank at an address of its machine, the others can connect there. Else the rank
// listens at all addresses, and tells those that are likely to be reachable.
void Meeting::listen() {
  const auto first_port = static_cast<int>(invitation_["first_port"].integer());
  const auto last_port = static_cast<int>(invitation_["last_port"].integer());
  const std::string machine = network::machine_id();
  std::vector<std::string> hosts;
  const auto add = [&](const std::string& host) {
    if (!host.empty() && !network::is_loopback(host) && std::ranges::find(hosts, host) == hosts.end())
      hosts.push_back(host);
  };
  const bool at_home = invitation_["machine"].string() == machine;
  const std::string reached_at = network::local_host(handle_.fileno());
  add(reached_at);
  const bool at_one_address = !hosts.empty();
  if (!at_one_address) {
    if (at_home)
      for (const Value& host : invitation_["coordinator"].list()) add(host.string());
    add(network::ssh_arrived_at());
    for (const network::Interface& each : network::interfaces()) add(each.host);
    if (hosts.empty()) hosts.emplace_back("127.0.0.1");
    const auto is_version_6 = [](const std::string& host) { return host.find(':') != std::string::npos; };
    if (!std::ranges::all_of(hosts, is_version_6)) std::erase_if(hosts, is_version_6);
  }
  const std::string everywhere = hosts.front().find(':') == std::string::npos ? "0.0.0.0" : "::";
  listener_ = listen_in_range(at_one_address ? reached_at : everywhere, first_port, last_port);
  const std::string local = "@miniray-group-" + random_hex(16);
  local_listener_ = network::listen(network::resolve(local, 0).front());
  // Ranks that do not see each other's processes cannot watch each other; they are treated as if on two machines.
  // MINIRAY_TEST_GROUP_NODE lets tests pretend that.
  std::array<char, 64> processes{};
  if (readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1) < 0) processes.fill('\0');
  const char* const pretended = std::getenv("MINIRAY_TEST_GROUP_NODE");
  List told;
  for (const std::string& host : hosts) told.emplace_back(host);
  handle_.send({{place_key, Value{{"machine", machine + processes.data() + (pretended != nullptr ? pretended : "")},
                                  {"at_home", at_home},
                                  {"hosts", Value(std::move(told))},
                                  {"port", network::local_port(listener_.get())},
                                  {"local", local}}}});
}

void Meeting::read_map(const Value& map) {
  for (const Value& place : map.list()) {
    std::vector<std::string> hosts;
    for (const Value& host : place["hosts"].list()) hosts.push_back(host.string());
    places_.push_back({static_cast<std::size_t>(place["node"].integer()), place["at_home"].boolean(), std::move(hosts),
                       static_cast<int>(place["port"].integer()), place["local"].string()});
  }
  if (places_.size() != members_.size()) throw ProtocolError("the map of a group has not one place for each rank");
  for (std::size_t rank = 0; rank < places_.size(); ++rank) {
    const std::size_t node = places_[rank].node;
    if (node > nodes_.ranks.size()) throw ProtocolError("the map of a group leaves out a node");
    if (node == nodes_.ranks.size()) nodes_.ranks.emplace_back();
    nodes_.ranks[node].push_back(rank);
  }
  nodes_.here = places_[rank_].node;
}

// Of two ranks, the one on the coordinator's machine connects, because that machine may be hidden behind a router. Of
// two equal ones, the later rank connects.
bool Meeting::dials(std::size_t other) const {
  return places_[rank_].at_home != places_[other].at_home ? places_[rank_].at_home : rank_ > other;
}

void Meeting::expect(std::size_t other, LineKind line) {
  if (dials(other))
    dial({other, line});
  else
    expected_.insert({other, line});
}

void Meeting::dial(LineId line) {
  const Place& to = places_[line.first];
  std::vector<network::Address> addresses;
  if (line.second == LineKind::memory)
    addresses = network::resolve(to.local, 0);
  else
    for (const std::string& host : to.hosts) addresses.push_back(network::resolve(host, to.port).front());
  if (addresses.empty()) throw ProtocolError("the map of a group has a rank without an address");
  Request request;
  request.kind = Request::Kind::group;
  request.token = std::to_string(rank_) + " " + std::to_string(line.first) + " " +
                  line_names[static_cast<std::size_t>(line.second)];
  request.unreachable_ms = unreachable_ms_;
  const std::string where = name_of(line.first) + " at " + addresses.front().text();
  dialled_.push_back({line, std::make_unique<Connector>(addresses, where, key_, request, encrypt_)});
}

void Meeting::connect() {
  deadline_ = Deadline::in_ms(limits::group_link_ms);
  const std::vector<std::size_t>& here = nodes_.ranks[nodes_.here];
  if (leads(rank_)) {
    memory_ = GroupSegment::make(GroupSegment::on_a_node(here.size()));
    for (const std::size_t other : here)
      if (other != rank_) expected_.insert({other, LineKind::memory});
  } else {
    dial({here.front(), LineKind::memory});
  }
  for (std::size_t other = 0; other < places_.size(); ++other) {
    if (places_[other].node == nodes_.here) continue;
    expect(other, LineKind::life);
    if (leads(rank_) && leads(other)) expect(other, LineKind::data);
  }
  while (true) {
    accept_all(listener_.get());
    accept_all(local_listener_.get());
    std::erase_if(pending_, [this](Pending& pending) { return advance_pending(pending); });
    for (Dialled& dialled : dialled_) advance_dialled(dialled);
    std::erase_if(dialled_, [](const Dialled& dialled) { return dialled.connector == nullptr; });
    receive_memory();
    if (complete()) return;
    if (deadline_.passed()) fail_late();
    wait();
    look_around();
  }
}

bool Meeting::complete() const { return dialled_.empty() && expected_.empty() && memory_.valid(); }

void Meeting::accept_all(int listener) {
  for (int i = 0; i < limits::accepts_per_turn; ++i) {
    std::optional<network::Accepted> accepted;
    try {
      accepted = network::accept(listener);
    } catch (const SystemError&) {  // there are no descriptors left; strangers may have them
      const std::optional<PendingLimits::Number> oldest = pending_limits_.oldest_of_busiest();
      if (!oldest) throw;
      make_room(*oldest);
      continue;
    }
    if (!accepted) return;
    if (const std::string stranger = network::other_user(accepted->socket.get()); !stranger.empty()) {
      log(LogLevel::warning, "a group refused " + accepted->peer + ": " + stranger);
      continue;
    }
    if (!system::is_unix_socket(accepted->socket.get())) system::set_no_delay(accepted->socket.get());
    while (const std::optional<PendingLimits::Number> surplus = pending_limits_.surplus(accepted->source))
      make_room(*surplus);
    pending_limits_.add(accepted->source, ++last_pending_);
    pending_.push_back({last_pending_, std::move(accepted->source),
                        PendingConnection(std::move(accepted->socket), accepted->peer, key_, encrypt_)});
  }
}

// Closes a connection, unless what it has sent meanwhile proves that it has the key.
void Meeting::make_room(PendingLimits::Number number) {
  const auto pending = std::ranges::find(pending_, number, &Pending::number);
  MINIRAY_CHECK(pending != pending_.end(), number);
  const bool dealt_with = read_pending(pending->connection);
  pending_limits_.remove(pending->address, number);
  if (dealt_with || !pending->connection.proved()) pending_.erase(pending);
}

bool Meeting::advance_pending(Pending& pending) {
  const bool dealt_with = read_pending(pending.connection);
  if (dealt_with || pending.connection.proved()) pending_limits_.remove(pending.address, pending.number);
  return dealt_with;
}

// Returns whether the connection needs no further handling. A stranger's connection is closed without an answer.
bool Meeting::read_pending(PendingConnection& pending) {
  const PendingConnection::Progress progress = pending.advance();
  if (progress == PendingConnection::Progress::waiting) return pending.late();
  if (progress == PendingConnection::Progress::failed || pending.request().kind != Request::Kind::group) return true;
  std::istringstream words(pending.request().token);
  std::size_t from = 0, to = 0;
  std::string name;
  words >> from >> to >> name;
  const auto line = static_cast<LineKind>(std::ranges::find(line_names, name) - line_names.begin());
  if (words.fail() || to != rank_ || expected_.erase({from, line}) == 0) return true;
  if (!pending.socket().write_at_once(with_length("{}"))) return true;
  SealedSocket socket = pending.take_socket();
  network::set_blocking(socket.fileno(), true);
  add_line({from, line}, std::move(socket));
  return true;
}

void Meeting::advance_dialled(Dialled& dialled) {
  Connector& connector = *dialled.connector;
  if (!connector.done()) connector.advance();
  if (connector.failure()) std::rethrow_exception(connector.failure());
  if (!connector.done()) return;
  add_line(dialled.line, connector.take_socket());
  dialled.connector.reset();
}

void Meeting::add_line(LineId line, SealedSocket socket) {
  // A lifeline carries hardly anything, so its peer's system always takes it. A line for data may wait for its peer.
  if (line.second == LineKind::life)
    network::notice_deaf_peer(socket.fileno(), unreachable_ms_);
  else
    network::notice_dead_peer(socket.fileno(), unreachable_ms_);
  ChannelOptions options;
  options.peer = name_of(line.first);
  options.shared_memory = false;
  options.seal = std::move(socket.seal);
  if (line.second == LineKind::life) options.message_bytes_max = limits::request_bytes_max;
  const auto [at, inserted] = lines_.try_emplace(line, socket.socket.release(), std::move(options));
  MINIRAY_CHECK(inserted, line.first);
  if (line.second != LineKind::memory || !leads(rank_)) return;
  auto copy = std::make_shared<PassedDescriptor>(system::duplicate(memory_.get()));
  at->second.send({{"memory", PassedDescriptor::as_array(std::move(copy))}});
}

void Meeting::receive_memory() {
  if (leads(rank_) || memory_.valid()) return;
  const auto line = lines_.find({nodes_.ranks[nodes_.here].front(), LineKind::memory});
  if (line == lines_.end()) return;
  const std::optional<Message> message = line->second.try_receive();
  if (!message) return;
  const Value received = decode(*message);
  PassedDescriptor* const memory = PassedDescriptor::in(received["memory"].array().buffer());
  if (memory == nullptr) throw ProtocolError(line->second.peer() + " sent no memory");
  memory_ = std::move(memory->descriptor);
}

void Meeting::wait() {
  std::vector<pollfd> watched{
      {listener_.get(), POLLIN, 0}, {local_listener_.get(), POLLIN, 0}, {handle_.fileno(), POLLIN, 0}};
  for (const Pending& pending : pending_) watched.push_back({pending.connection.fileno(), POLLIN, 0});
  for (const Dialled& dialled : dialled_)
    watched.push_back({dialled.connector->fileno(), dialled.connector->events(), 0});
  for (const auto& [line, channel] : lines_)
    if (line.second == LineKind::memory && !leads(rank_)) watched.push_back({channel.fileno(), POLLIN, 0});
  (void)system::poll_many(watched, deadline_.poll_ms(limits::group_slice_ms));
}

// The coordinator may know already that the ranks cannot meet.
void Meeting::look_around() {
  if (on_interrupt_) on_interrupt_();
  if (const std::optional<Message> message = handle_.try_receive()) {
    const Value received = decode(*message);
    const Value* const verdict = received.kind() == Value::Kind::map ? received.find(verdict_key) : nullptr;
    if (verdict != nullptr) throw Verdict{verdict->string()};
    handle_.put_back(*message);
  }
}

void Meeting::fail_late() const {
  const std::string within = " within " + std::to_string(limits::group_link_ms / 1000) + " s";
  if (!dialled_.empty()) throw GroupBroken("it cannot " + dialled_.front().connector->operation() + within);
  if (!expected_.empty()) throw GroupBroken(name_of(expected_.begin()->first) + " did not connect to it" + within);
  throw GroupBroken("it did not get the memory of its machine" + within);
}

Met Meeting::take() {
  std::vector<GroupLinks::Lifeline> lifelines;
  std::vector<GroupLinks::DataLine> data;
  for (auto& [line, channel] : lines_) {
    if (line.second == LineKind::life)
      lifelines.push_back({line.first, std::move(channel), {}, {}});
    else if (line.second == LineKind::data)
      data.push_back({places_[line.first].node, std::move(channel), {}, {}});
  }
  return {std::move(memory_), std::move(nodes_), GroupLinks(std::move(lifelines), std::move(data), unreachable_ms_)};
}

// Waits for a message of the coordinator. Throws if the message says that the ranks cannot meet.
Value next_order(Handle& handle, const char* key, double timeout_s) {
  Value message = handle.recv({.timeout_s = timeout_s});
  if (message.kind() == Value::Kind::map) {
    if (const Value* found = message.find(key)) return *found;
    if (const Value* verdict = message.find(verdict_key)) throw Verdict{verdict->string()};
  }
  throw ProtocolError("a rank that joins a group got " + message.text() + " instead of an answer of create_group()");
}

}  // namespace

Met meet(Handle& handle, const Value& invitation, std::size_t rank, const std::vector<GroupMember>& members,
         const std::function<void()>& on_interrupt) {
  const double timeout_s = invitation["timeout_s"].real();
  // A rank that joins after create_group() has failed sends nothing: its messages would reach a recv() of the program.
  if (std::optional<Message> message = handle.try_receive()) {
    handle.put_back(std::move(*message));
    throw GroupBroken(next_order(handle, verdict_key, timeout_s).string());
  }
  Meeting meeting(handle, invitation, rank, members, on_interrupt);
  try {
    meeting.listen();
    meeting.read_map(next_order(handle, map_key, timeout_s));
    meeting.connect();
    handle.send({{report_key, ""}});
  } catch (const Verdict& verdict) {  // another rank has failed
    handle.send({{report_key, ""}});
    throw GroupBroken(verdict.text);
  } catch (const EndOfStream&) {
    throw;
  } catch (const Error& error) {
    handle.send({{report_key, error.what()}});
  } catch (...) {
    handle.send({{report_key, "it was interrupted"}});
    throw;
  }
  if (const std::string verdict = next_order(handle, verdict_key, timeout_s).string(); !verdict.empty())
    throw GroupBroken(verdict);
  return meeting.take();
}

}  // namespace miniray
