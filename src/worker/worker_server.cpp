#include "miniray/worker_server.hpp"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <list>
#include <map>

#include "base/check.hpp"
#include "base/event_loop.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"
#include "wire/utf8.hpp"
#include "worker/hosted_worker.hpp"
#include "worker/newcomer.hpp"
#include "worker/supply.hpp"

namespace miniray {
namespace {

void log_to_stderr(const std::string& line) {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  std::array<char, 16> clock{};
  strftime(clock.data(), clock.size(), "%H:%M:%S", &local);
  std::fprintf(stderr, "miniray worker-server %s %s\n", clock.data(), line.c_str());
}

}  // namespace

class WorkerServer::State {
 public:
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
  /// For other threads.
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t living() const {
    return static_cast<std::size_t>(std::ranges::count_if(hosted_, [](const auto& one) { return !one->ended(); }));
  }

 private:
  struct Listener {
    Fd socket;
    EventLoop::Watch watch;
  };
  struct Entering {
    Newcomer newcomer;
    EventLoop::Watch watch;
  };
  // Half of a worker's two connections, waiting for the other.
  struct Half {
    Entering entering;
    Deadline deadline = Deadline::in_ms(limits::hello_timeout_ms);
  };
  struct Link {
    Channel channel;
    EventLoop::Watch watch;
  };
  using EnteringList = std::list<Entering>;

  void log(const std::string& line) const { options_.on_log ? options_.on_log(line) : log_to_stderr(line); }
  void listen();
  void accept_some();
  void make_room();
  void admit(Fd socket, std::string peer);
  void advance(EnteringList::iterator entering);
  void let_in(Entering entering);
  void pair_up(Entering entering);
  void refuse(std::initializer_list<const Fd*> sockets, const std::string& peer, const std::string& why) const;
  void start_worker(Newcomer& data, Newcomer* control);
  const WorkFunction& find_work(const std::string& name);
  void be_patient_again();
  void open_link(Newcomer& newcomer);
  void take_supplies(std::list<Link>::iterator link);
  bool tick();
  void turn();
  void end_workers();

  WorkerServerOptions options_;
  Key key_;
  WorkFunction work_;
  std::map<std::string, WorkFunction> found_;
  std::uint64_t descriptor_limit_;
  std::size_t newcomers_max_;  // so that strangers leave room for workers
  std::string socket_path_;    // of a Unix-domain socket, to be removed
  EventLoop loop_;
  SupplyStore supplies_;
  Listener listener_;
  int port_ = 0;
  std::optional<Deadline> listening_again_at_;
  EnteringList entering_;  // oldest first
  std::map<std::string, Half> halves_;
  std::list<Link> links_;
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
      key_(options_.key.empty() ? Key::of_user() : Key::from_hex(options_.key, "the argument key")),
      work_(std::move(work)),
      descriptor_limit_(system::raise_descriptor_limit()),
      newcomers_max_(std::min<std::size_t>(limits::newcomers_max, system::descriptor_limit() / 4)) {
  if (network::is_path(host)) socket_path_ = host;
  listener_.socket = network::listen(network::resolve(host, port).front());
  port_ = network::local_port(listener_.socket.get());
  listen();
}

WorkerServer::State::~State() {
  if (generation_ != process_generation()) return;
  try {
    end_workers();
  } catch (...) {  // their lifelines end with this process
  }
  if (!socket_path_.empty()) std::remove(socket_path_.c_str());
}

void WorkerServer::State::listen() {
  listener_.watch = loop_.watch(listener_.socket.get(), [this] { accept_some(); });
}

void WorkerServer::State::accept_some() {
  for (int i = 0; i < limits::accepts_per_turn; ++i) {
    try {
      std::optional<network::Accepted> accepted = network::accept(listener_.socket.get());
      if (!accepted) return;
      admit(std::move(accepted->socket), std::move(accepted->peer));
    } catch (const SystemError& error) {
      log(error.what());
      if (!entering_.empty()) {
        make_room();
        continue;
      }
      listener_.watch.reset();  // until somebody has left
      listening_again_at_ = Deadline::in_ms(limits::wait_slice_ms);
      return;
    }
  }
}

void WorkerServer::State::make_room() {
  MINIRAY_CHECK(!entering_.empty(), newcomers_max_);
  log("dropped " + entering_.front().newcomer.peer() + ": too many connections say nothing, and it is the oldest");
  entering_.pop_front();
}

void WorkerServer::State::admit(Fd socket, std::string peer) {
  if (entering_.size() >= newcomers_max_) make_room();
  MINIRAY_CHECK(socket.valid() && entering_.size() < newcomers_max_, entering_.size(), newcomers_max_);
  entering_.push_back({Newcomer(std::move(socket), std::move(peer), key_), {}});
  const auto entering = std::prev(entering_.end());
  entering->watch = loop_.watch(entering->newcomer.fileno(), [this, entering] { advance(entering); });
}

void WorkerServer::State::advance(EnteringList::iterator entering) {
  switch (entering->newcomer.advance()) {
    case Newcomer::Progress::waiting:
      return;
    case Newcomer::Progress::failed:
      log("refused " + entering->newcomer.peer() + ": " + entering->newcomer.complaint());
      entering_.erase(entering);
      return;
    case Newcomer::Progress::asked:
      break;
  }
  Entering ready = std::move(*entering);
  ready.watch.reset();
  entering_.erase(entering);
  const std::string peer = ready.newcomer.peer();
  try {
    let_in(std::move(ready));
  } catch (const std::exception& error) {  // one connection's trouble is not the server's
    log("refused " + peer + ": " + error.what());
  }
}

void WorkerServer::State::let_in(Entering entering) {
  const Request& request = entering.newcomer.request();
  if (request.kind == Request::Kind::link) return open_link(entering.newcomer);
  if (request.kind == Request::Kind::worker && request.token.empty()) return start_worker(entering.newcomer, nullptr);
  pair_up(std::move(entering));
}

void WorkerServer::State::pair_up(Entering entering) {
  const std::string token = entering.newcomer.request().token;
  const auto other = halves_.find(token);
  if (other == halves_.end()) {
    halves_.emplace(token, Half{std::move(entering)});
    return;
  }
  Half half = std::move(other->second);
  halves_.erase(other);
  Newcomer& first = half.entering.newcomer;
  if (first.request().kind == entering.newcomer.request().kind) {
    refuse({&entering.newcomer.socket(), &first.socket()}, entering.newcomer.peer(),
           "two connections asked to be the same half of one worker");
    return;
  }
  const bool data_first = first.request().kind == Request::Kind::worker;
  start_worker(data_first ? first : entering.newcomer, data_first ? &entering.newcomer : &first);
}

void WorkerServer::State::refuse(std::initializer_list<const Fd*> sockets, const std::string& peer,
                                 const std::string& why) const {
  log("refused " + peer + ": " + to_utf8(why));
  const bool long_one = why.size() > limits::refusal_bytes_max;
  const std::string told = long_one ? "... " + why.substr(why.size() - limits::refusal_bytes_max) : why;
  const Value answer{{"refused", to_utf8(told)}};  // it may be cut within a letter
  for (const Fd* socket : sockets)
    if (socket->valid()) write_at_once(socket->get(), with_length(write_json(answer)));
}

const WorkFunction& WorkerServer::State::find_work(const std::string& name) {
  if (name.empty()) {
    if (!work_) throw UsageError("this server has no work function of its own: say which one to run (work_fn)");
    return work_;
  }
  const auto known = found_.find(name);
  if (known != found_.end()) return known->second;
  if (!options_.find_work) throw UsageError("this server runs only the work function that it was started with");
  struct Relief {
    explicit Relief(State& busy) : state(busy) {}
    Relief(const Relief&) = delete;
    Relief& operator=(const Relief&) = delete;
    ~Relief() { state.be_patient_again(); }
    State& state;
  } const relief(*this);
  return found_.emplace(name, options_.find_work(name)).first->second;
}

// An import may have taken long, and nobody was listened to meanwhile: that is not their fault.
void WorkerServer::State::be_patient_again() {
  for (Entering& entering : entering_) entering.newcomer.begin_anew();
  for (auto& [token, half] : halves_) half.deadline = Deadline::in_ms(limits::hello_timeout_ms);
}

void WorkerServer::State::start_worker(Newcomer& data, Newcomer* control) {
  const Request& request = data.request();
  HostedWorker::Connections connections{data.take_socket(), control != nullptr ? control->take_socket() : Fd()};
  try {
    if (options_.num_workers > 0 && living() >= options_.num_workers)
      throw UsageError("all of its " + std::to_string(options_.num_workers) +
                       " workers are taken. Start it with more (--workers), or wait until one has ended");
    const WorkFunction& work = find_work(request.work_fn);
    hosted_.push_back(std::make_unique<HostedWorker>(++last_number_, request, work, connections, options_, loop_,
                                                     supplies_, descriptor_limit_));
  } catch (const std::exception& error) {
    refuse({&connections.data, &connections.control}, data.peer(), error.what());
  }
}

void WorkerServer::State::open_link(Newcomer& newcomer) {
  write_at_once(newcomer.fileno(), with_length("{}"));
  const Request request = newcomer.request();
  ChannelOptions options;
  options.peer = newcomer.peer();
  options.shared_memory = false;
  Fd socket = newcomer.take_socket();
  network::set_blocking(socket.get(), true);
  network::notice_dead_peer(socket.get(), request.unreachable_ms);
  supplies_.set_expecting(true);
  links_.push_back({Channel(socket.release(), std::move(options)), {}});
  const auto link = std::prev(links_.end());
  link->watch = loop_.watch(link->channel.fileno(), [this, link] { take_supplies(link); });
}

void WorkerServer::State::take_supplies(std::list<Link>::iterator link) {
  try {
    while (const std::optional<Message> message = link->channel.try_receive()) {
      const Value supplies = decode(*message);
      std::vector<SupplyStore::Worker> workers;
      for (const Value& pid : supplies["workers"].list())
        for (const auto& hosted : hosted_)
          if (!hosted->ended() && hosted->pid() == pid.integer()) workers.push_back(hosted->number());
      const List& numbers = supplies["numbers"].list();
      const List& buffers = supplies["buffers"].list();
      if (numbers.size() != buffers.size()) throw ProtocolError("a link's message has another number of buffers");
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::uint64_t number = numbers[i].unsigned_integer();
        try {
          supplies_.put(number, buffers.at(i).array().buffer().bytes(), workers);
        } catch (const SystemError& error) {
          log(error.what());
          supplies_.put_nothing(number, workers);
        }
      }
    }
    return;
  } catch (const EndOfStream&) {
  } catch (const std::exception& error) {
    log("closed a link: " + std::string(error.what()));
  }
  links_.erase(link);
  supplies_.set_expecting(!links_.empty());
}

// Time passes. True if somebody's is running out, so that the next look must not be late.
bool WorkerServer::State::tick() {
  while (!entering_.empty() && entering_.front().newcomer.late()) {
    log("refused " + entering_.front().newcomer.peer() + ": " + entering_.front().newcomer.lateness());
    entering_.pop_front();
  }
  std::erase_if(halves_, [&](auto& half) {
    if (!half.second.deadline.passed()) return false;
    const Newcomer& alone = half.second.entering.newcomer;
    refuse({&alone.socket()}, alone.peer(), "the other of its two connections did not come");
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

void WorkerServer::State::turn() {
  const bool urgent = tick();
  (void)loop_.poll(urgent ? limits::busy_turn_ms : limits::wait_slice_ms);
  count_ = living();
  if (options_.on_interrupt) options_.on_interrupt();
}

void WorkerServer::State::serve() {
  if (!listener_.socket.valid()) throw UsageError("this server has served, and was stopped: make another");
  try {
    while (!stopping_) turn();
  } catch (...) {
    end_workers();
    throw;
  }
  end_workers();
}

// The listener goes first, so that nobody comes in while the rest is sent home.
void WorkerServer::State::end_workers() {
  listener_ = {};
  entering_.clear();
  halves_.clear();
  listening_again_at_.reset();
  for (const auto& hosted : hosted_) hosted->dismiss("was ended because its worker server was stopped");
  while (living() > 0) {
    try {
      turn();
    } catch (...) {  // asked again: at once, then
      for (const auto& hosted : hosted_) hosted->kill();
    }
  }
  hosted_.clear();
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
