#include "miniray/worker_server.hpp"

#include <signal.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <map>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/event_loop.hpp"
#include "base/log.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"
#include "wire/utf8.hpp"
#include "worker/hosted_worker.hpp"
#include "worker/pending_connection.hpp"
#include "worker/pending_limits.hpp"
#include "worker/refusal_log.hpp"
#include "worker/supply.hpp"

namespace miniray {
namespace {

// The limits leave descriptors for workers, and let no address take all the room.
PendingLimits pending_limits() {
  const std::size_t descriptors = system::descriptor_limit();
  return {std::min(limits::pending_connections_max, descriptors / 4),
          std::min(limits::pending_connections_of_address_max, descriptors / 8)};
}

void log_line(const std::string& line) {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  std::array<char, 16> clock{};
  strftime(clock.data(), clock.size(), "%H:%M:%S", &local);
  log(line.starts_with("refused ") ? LogLevel::warning : LogLevel::info, "worker-server: " + line,
      std::string("miniray worker-server ") + clock.data() + " " + line);
}

}  // namespace

class WorkerServer::State {
 public:
  static constexpr const char* class_name = "WorkerServer";
  State(const std::string& host, int port, WorkFunction work, WorkerServerOptions options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void serve();
  void stop() { stopping_ = true; }
  void on_ready(int descriptor, std::function<void()> action) {
    extra_.push_back(loop_.watch(descriptor, std::move(action)));
  }
  void when_writable(int descriptor, std::function<bool()> action) {
    writable_ = loop_.watch(
        descriptor,
        [this, wanted = std::move(action)] {
          if (!wanted()) writable_.reset();
        },
        system::Interest::writable);
  }
  void resume_output() {
    for (const auto& hosted : hosted_) hosted->resume_output();
  }
  void prepare(const std::string& work_fn) { (void)find_work(work_fn); }
  [[nodiscard]] int port() const { return port_; }
  /// Returns how many workers were alive a moment ago. Any thread may call it.
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t living() const {
    return static_cast<std::size_t>(std::ranges::count_if(hosted_, [](const auto& one) { return !one->ended(); }));
  }

 private:
  struct Listener {
    Fd socket;
    EventLoop::Watch watch;
  };
  struct Pending {
    PendingConnection connection;
    std::string address;  // what pending_limits_ counts
    EventLoop::Watch watch;
  };
  // One of a worker's two connections, which waits for the other.
  struct Half {
    Pending pending;
    Deadline deadline = Deadline::in_ms(limits::hello_timeout_ms);
  };
  struct Link {
    Channel channel;
    EventLoop::Watch watch;
    bool unread = false;  // messages may wait in the channel, which the watch does not see
  };
  using PendingNumber = PendingLimits::Number;
  using PendingMap = std::map<PendingNumber, Pending>;

  void log(const std::string& line) const { options_.on_log ? options_.on_log(line) : log_line(line); }
  void log_refusal(const Pending& pending, const std::string& why) {
    refusals_.refused(pending.address, pending.connection.peer(), why, now_ns());
  }
  void listen();
  void accept_some();
  void add_pending(network::Accepted accepted);
  void make_room(PendingNumber surplus, const std::string& why);
  Pending take_pending(PendingMap::iterator pending);
  void advance(PendingNumber number);
  void serve_request(Pending pending);
  void pair_up(Pending pending);
  void refuse(std::initializer_list<const SealedSocket*> sockets, const Pending& pending, const std::string& why);
  void start_worker(Pending& data, PendingConnection* control);
  void wipe_seals_except(const Seal* own);
  const WorkFunction& find_work(const std::string& name);
  void restart_deadlines();
  void open_link(PendingConnection& connection);
  void take_supplies(std::list<Link>::iterator link);
  void take_supply(const Value& supply);
  bool tick();
  void serve_once();
  void end_workers();

  WorkerServerOptions options_;
  Key key_;
  WorkFunction work_;
  std::map<std::string, WorkFunction> found_;
  std::uint64_t descriptor_limit_;
  std::string socket_path_;  // of a Unix-domain socket; the destructor removes it
  EventLoop loop_;
  SupplyStore supplies_;
  Listener listener_;
  int port_ = 0;
  std::optional<Deadline> listening_again_at_;
  bool accept_due_ = false;  // connections wait to be accepted
  RefusalLog refusals_{[this](const std::string& line) { log(line); }};
  PendingMap pending_;  // the oldest is first
  PendingNumber last_pending_ = 0;
  PendingLimits pending_limits_;  // those of pending_ that have not proved yet that they have the key
  std::map<std::string, Half> halves_;
  std::list<Link> links_;
  std::vector<std::weak_ptr<Seal>> seals_;  // of all connections that have sent their request
  std::vector<EventLoop::Watch> extra_;
  EventLoop::Watch writable_;
  std::list<std::unique_ptr<HostedWorker>> hosted_;
  std::uint64_t last_number_ = 0;
  std::uint64_t generation_ = process_generation();
  std::atomic<bool> stopping_ = false;
  std::atomic<std::size_t> count_ = 0;
};

WorkerServer::State::State(const std::string& host, int port, WorkFunction work, WorkerServerOptions options)
    : options_(std::move(options)),
      key_(options_.own_key       ? *options_.own_key
           : options_.key.empty() ? Key::of_user()
                                  : Key::from_hex(options_.key, "the argument key")),
      work_(std::move(work)),
      descriptor_limit_(system::raise_descriptor_limit()),
      pending_limits_(pending_limits()) {
  // A worker has a copy of this memory. It inherits no Key, and must not find the digits either.
  explicit_bzero(options_.key.data(), options_.key.size());
  options_.key.clear();
  if (network::is_path(host)) socket_path_ = host;
  listener_.socket = network::listen(network::resolve(host.empty() ? "127.0.0.1" : host, port).front());
  port_ = network::local_port(listener_.socket.get());
  listen();
}

WorkerServer::State::~State() {
  if (generation_ != process_generation()) return;
  try {
    end_workers();
  } catch (...) {  // the workers' lifelines end with this process
  }
  if (!socket_path_.empty()) std::remove(socket_path_.c_str());
}

// Also called later, if the server has stopped watching its listener for a while.
void WorkerServer::State::listen() {
  listener_.watch = loop_.watch(listener_.socket.get(), [this] { accept_due_ = true; });
}

// Called at the end of a turn of the loop: what pending connections have sent is answered before new ones are let in.
void WorkerServer::State::accept_some() {
  accept_due_ = false;
  for (int i = 0; i < limits::accepts_per_turn; ++i) {
    try {
      std::optional<network::Accepted> accepted = network::accept(listener_.socket.get());
      if (!accepted) return;
      if (const std::string stranger = network::other_user(accepted->socket.get()); !stranger.empty()) {
        refusals_.refused(accepted->source, accepted->peer, stranger, now_ns());
        continue;
      }
      add_pending(std::move(*accepted));
    } catch (const SystemError& error) {  // there are no descriptors left
      if (const std::optional<PendingNumber> oldest = pending_limits_.oldest_of_busiest()) {
        make_room(*oldest, std::string("there is no room for more connections: ") + error.what());
        continue;
      }
      log(error.what());
      listener_.watch.reset();  // otherwise the loop would call this function without a pause
      listening_again_at_ = Deadline::in_ms(limits::wait_slice_ms);
      return;
    }
  }
}

// Closes a pending connection, unless what it has sent meanwhile proves that it has the key.
void WorkerServer::State::make_room(PendingNumber surplus, const std::string& why) {
  advance(surplus);
  const auto pending = pending_.find(surplus);
  if (pending == pending_.end() || pending->second.connection.proved()) return;
  log_refusal(pending->second, why);
  (void)take_pending(pending);
}

void WorkerServer::State::add_pending(network::Accepted accepted) {
  while (const std::optional<PendingNumber> surplus = pending_limits_.surplus(accepted.source))
    make_room(*surplus,
              "too many connections have not proved that they have the key, and this is the oldest one of the address "
              "that has most of them");
  const PendingNumber number = ++last_pending_;
  pending_limits_.add(accepted.source, number);
  PendingConnection connection(std::move(accepted.socket), std::move(accepted.peer), key_, options_.encrypt);
  Pending& pending =
      pending_.emplace(number, Pending{std::move(connection), std::move(accepted.source), {}}).first->second;
  pending.watch = loop_.watch(pending.connection.fileno(), [this, number] { advance(number); });
}

WorkerServer::State::Pending WorkerServer::State::take_pending(PendingMap::iterator pending) {
  Pending taken = std::move(pending->second);
  taken.watch.reset();
  pending_limits_.remove(taken.address, pending->first);
  pending_.erase(pending);
  return taken;
}

// The action of a pending connection's watch. It destroys that watch, which an action may do.
void WorkerServer::State::advance(PendingNumber number) {
  const auto pending = pending_.find(number);
  MINIRAY_CHECK(pending != pending_.end(), number);
  const PendingConnection::Progress progress = pending->second.connection.advance();
  if (pending->second.connection.proved()) pending_limits_.remove(pending->second.address, number);
  if (progress == PendingConnection::Progress::waiting) return;
  Pending taken = take_pending(pending);
  if (progress == PendingConnection::Progress::failed) return log_refusal(taken, taken.connection.error_text());
  const std::string address = taken.address, peer = taken.connection.peer();
  try {
    serve_request(std::move(taken));
  } catch (const std::exception& error) {  // an error of one connection must not end the server
    refusals_.refused(address, peer, error.what(), now_ns());
  }
}

void WorkerServer::State::serve_request(Pending pending) {
  const Request& request = pending.connection.request();
  std::erase_if(seals_, [](const std::weak_ptr<Seal>& seal) { return seal.expired(); });
  if (const std::shared_ptr<Seal>& seal = pending.connection.socket().seal) seals_.push_back(seal);
  if (request.kind == Request::Kind::link) return open_link(pending.connection);
  if (request.kind == Request::Kind::group)
    return refuse({&pending.connection.socket()}, pending,
                  "this is a worker server and no rank of a group; give the address that the rank has told");
  if (request.kind == Request::Kind::worker && request.token.empty()) return start_worker(pending, nullptr);
  pair_up(std::move(pending));
}

// A worker has two connections, which come in any order. The first waits for the second with the same token.
void WorkerServer::State::pair_up(Pending pending) {
  const std::string token = pending.connection.request().token;
  const auto other = halves_.find(token);
  if (other == halves_.end()) {
    halves_.emplace(token, Half{std::move(pending)});
    return;
  }
  Half half = std::move(other->second);
  halves_.erase(other);
  PendingConnection& first = half.pending.connection;
  if (first.request().kind == pending.connection.request().kind) {
    refuse(
        {&pending.connection.socket(), &first.socket()}, pending,
        R"(two connections with the same token are of the same kind; one has to be "worker" and the other "control")");
    return;
  }
  const bool data_first = first.request().kind == Request::Kind::worker;
  start_worker(data_first ? half.pending : pending, data_first ? &pending.connection : &first);
}

// The end of the text is kept if it is too long, because a traceback ends with the error.
void WorkerServer::State::refuse(std::initializer_list<const SealedSocket*> sockets, const Pending& pending,
                                 const std::string& why) {
  log_refusal(pending, to_utf8(why));
  const bool long_one = why.size() > limits::refusal_bytes_max;
  const std::string end_of_why = long_one ? "... " + why.substr(why.size() - limits::refusal_bytes_max) : why;
  const Value answer{{"refused", to_utf8(end_of_why)}};  // the cut may have split a character
  for (const SealedSocket* socket : sockets)
    if (socket->valid()) socket->write_at_once(with_length(write_json(answer)));
}

// Called in a worker's process, which has a copy of this object. With the keys of another worker's connection, it could
// speak for that one.
void WorkerServer::State::wipe_seals_except(const Seal* own) {
  for (auto& [number, pending] : pending_) pending.connection.wipe();
  for (auto& [token, half] : halves_) half.pending.connection.wipe();
  for (const std::weak_ptr<Seal>& seal : seals_)
    if (const std::shared_ptr<Seal> other = seal.lock(); other && other.get() != own) other->wipe();
}

const WorkFunction& WorkerServer::State::find_work(const std::string& name) {
  if (name.empty()) {
    if (!work_) throw UsageError("this server has no default work function: say which one to run (work_fn)");
    return work_;
  }
  const auto known = found_.find(name);
  if (known != found_.end()) return known->second;
  if (!options_.find_work) throw UsageError("this server runs only the work function that it was started with");
  struct DeadlineRestart {
    explicit DeadlineRestart(State& busy) : state(busy) {}
    DeadlineRestart(const DeadlineRestart&) = delete;
    DeadlineRestart& operator=(const DeadlineRestart&) = delete;
    ~DeadlineRestart() { state.restart_deadlines(); }
    State& state;
  } const restart(*this);
  return found_.emplace(name, options_.find_work(name)).first->second;
}

// An import may have taken long, and the server read no connection meanwhile. So all of them get their full time again.
void WorkerServer::State::restart_deadlines() {
  for (auto& [number, pending] : pending_) pending.connection.restart_deadline();
  for (auto& [token, half] : halves_) half.deadline = Deadline::in_ms(limits::hello_timeout_ms);
}

void WorkerServer::State::start_worker(Pending& data, PendingConnection* control) {
  const Request& request = data.connection.request();
  HostedWorker::Connections connections{
      data.connection.take_socket(), control != nullptr ? control->take_socket() : SealedSocket(), {}};
  connections.wipe_others = [this, own = connections.data.seal.get()] { wipe_seals_except(own); };
  try {
    if (options_.num_workers > 0 && living() >= options_.num_workers)
      throw UsageError("all of its " + std::to_string(options_.num_workers) +
                       " workers are taken. Start it with more (--workers), or wait until one has ended");
    const WorkFunction& work = find_work(request.work_fn);
    hosted_.push_back(std::make_unique<HostedWorker>(++last_number_, request, work, connections, options_, loop_,
                                                     supplies_, descriptor_limit_));
  } catch (const std::exception& error) {
    refuse({&connections.data, &connections.control}, data, error.what());
  }
}

// A link brings buffers for several workers. Its messages are small maps beside large arrays.
void WorkerServer::State::open_link(PendingConnection& connection) {
  connection.socket().write_at_once(with_length("{}"));
  const Request request = connection.request();
  ChannelOptions options;
  options.peer = connection.peer();
  options.shared_memory = false;
  SealedSocket line = connection.take_socket();
  network::set_blocking(line.fileno(), true);
  network::notice_dead_peer(line.fileno(), request.unreachable_ms);
  supplies_.set_expecting(true);
  options.seal = std::move(line.seal);
  links_.push_back({Channel(line.socket.release(), std::move(options)), {}});
  const auto link = std::prev(links_.end());
  link->watch = loop_.watch(link->channel.fileno(), [this, link] { take_supplies(link); });
}

// A coordinator that sends without end must not keep the others waiting, so the rest is taken in the next turn.
void WorkerServer::State::take_supplies(std::list<Link>::iterator link) {
  link->unread = false;
  try {
    for (int taken = 0; taken < limits::supplies_per_turn; ++taken) {
      const std::optional<Message> message = link->channel.try_receive();
      if (!message) return;
      take_supply(decode(*message));
    }
    link->unread = true;
    return;
  } catch (const EndOfStream&) {
  } catch (const std::exception& error) {
    log("closed a link: " + std::string(error.what()));
  }
  links_.erase(link);
  supplies_.set_expecting(!links_.empty());
}

void WorkerServer::State::take_supply(const Value& supply) {
  std::vector<SupplyStore::Worker> workers;
  for (const Value& pid : supply["workers"].list())
    for (const auto& hosted : hosted_)
      if (!hosted->ended() && hosted->pid() == pid.integer()) workers.push_back(hosted->number());
  const List& numbers = supply["numbers"].list();
  const List& buffers = supply["buffers"].list();
  if (numbers.size() != buffers.size())
    throw ProtocolError("a message on a link has " + std::to_string(numbers.size()) + " numbers for " +
                        std::to_string(buffers.size()) + " buffers");
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint64_t number = numbers[i].unsigned_integer();
    try {
      supplies_.put(number, buffers.at(i).array().buffer().bytes(), workers);
    } catch (const SystemError& error) {  // no memory: the workers that need this buffer fail, the server does not
      log(error.what());
      supplies_.put_missing(number, workers);
    }
  }
}

// Does what is due now. Returns true if a worker has a deadline soon, so that the next tick must come soon too.
bool WorkerServer::State::tick() {
  while (!pending_.empty() && pending_.begin()->second.connection.late()) {
    const Pending late = take_pending(pending_.begin());
    log_refusal(late, late.connection.late_text());
  }
  refusals_.tick(now_ns());
  std::erase_if(halves_, [&](auto& half) {
    if (!half.second.deadline.passed()) return false;
    const Pending& alone = half.second.pending;
    refuse(
        {&alone.connection.socket()}, alone,
        "the worker's other connection did not come within " + std::to_string(limits::hello_timeout_ms / 1000) + " s");
    return true;
  });
  if (listening_again_at_ && listening_again_at_->passed()) {
    listening_again_at_.reset();
    listen();
  }
  bool urgent = false;
  std::erase_if(hosted_, [&](const std::unique_ptr<HostedWorker>& hosted) {
    urgent = hosted->tick() || urgent;
    return hosted->finished();
  });
  return urgent;
}

void WorkerServer::State::serve_once() {
  const bool urgent = tick();
  const bool unread = std::ranges::any_of(links_, &Link::unread);
  (void)loop_.poll(unread ? 0 : urgent ? limits::busy_turn_ms : limits::wait_slice_ms);
  for (auto link = links_.begin(); link != links_.end();)
    if (const auto each = link++; each->unread) take_supplies(each);
  if (accept_due_) accept_some();
  count_ = living();
  if (options_.on_interrupt) options_.on_interrupt();
}

void WorkerServer::State::serve() {
  if (!listener_.socket.valid()) throw UsageError("this server was stopped and cannot serve again: make another one");
  try {
    while (!stopping_) serve_once();
  } catch (...) {
    end_workers();
    throw;
  }
  end_workers();
}

// The listener is closed first, so that no connection comes while the workers end.
void WorkerServer::State::end_workers() {
  listener_ = {};
  accept_due_ = false;
  while (!pending_.empty()) (void)take_pending(pending_.begin());
  halves_.clear();
  listening_again_at_.reset();
  for (const auto& hosted : hosted_) hosted->end("was ended because its worker server was stopped");
  while (living() > 0) {
    try {
      serve_once();
    } catch (...) {  // a second interrupt kills the workers
      for (const auto& hosted : hosted_) hosted->kill();
    }
  }
  hosted_.clear();
  refusals_.summarise(now_ns());
}

WorkerServer::WorkerServer(const std::string& host, int port, WorkFunction work, WorkerServerOptions options)
    : state_(std::make_unique<State>(host, port, std::move(work), std::move(options))) {}
WorkerServer::WorkerServer(WorkerServer&&) noexcept = default;
WorkerServer& WorkerServer::operator=(WorkerServer&&) noexcept = default;
WorkerServer::~WorkerServer() = default;

int WorkerServer::port() const { return state_->port(); }
void WorkerServer::serve_forever() { state_->serve(); }
void WorkerServer::stop() { state_->stop(); }
void WorkerServer::on_ready(int descriptor, std::function<void()> action) {
  state_->on_ready(descriptor, std::move(action));
}
void WorkerServer::when_writable(int descriptor, std::function<bool()> action) {
  state_->when_writable(descriptor, std::move(action));
}
void WorkerServer::resume_output() { state_->resume_output(); }
void WorkerServer::prepare(const std::string& work_fn) { state_->prepare(work_fn); }
std::size_t WorkerServer::worker_count() const { return state_->count(); }

}  // namespace miniray
