#include "miniray/worker.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <tuple>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/crash.hpp"
#include "base/fork_safety.hpp"
#include "base/process.hpp"
#include "base/system.hpp"
#include "channel/trace.hpp"
#include "worker/work_function.hpp"

namespace miniray {
namespace {

void warn(const WorkerOptions& options, const std::string& text) {
  if (options.on_warning) return options.on_warning(text);
  static bool printed = false;
  if (!std::exchange(printed, true)) std::fprintf(stderr, "miniray: %s\n", text.c_str());
}

void check_fork_is_safe(const WorkerOptions& options, const OpenMpAfterFork& openmp) {
  if (cuda_context_is_live())
    throw UsageError(
        "cannot fork a worker: this process holds a live CUDA context, which does not survive a fork. "
        "Start the worker before CUDA is first used, or with start=\"spawn\" (C++: Worker::spawn)");
  if (openmp.needed())
    warn(options,
         "GNU OpenMP (torch and others use it) has threads in this process, which do not survive a fork. "
         "The worker's parallel regions run on one thread; use start=\"spawn\" for more");
  else if (options.warn_of_threads && system::thread_count() > 1)
    warn(options,
         "this process has several threads; a forked worker gets only the calling one, and locks that the "
         "others hold stay locked in it. Start workers before threads, or use Worker::spawn");
}

// What a coordinator holds of a worker besides the channel: made before the process, told to it by its descriptors.
struct Ties {
  Fd lifeline;    // its closing ends the worker
  Fd crash_file;  // the worker writes its stack there, should it crash
  std::uint64_t memory_kills = out_of_memory_kills();
};

// The worker's ends of everything.
struct WorkerEnds {
  Fd socket, lifeline;
  int crash_file;
  [[nodiscard]] std::array<int, 3> numbers() const { return {socket.get(), lifeline.get(), crash_file}; }
};

std::tuple<Fd, Ties, WorkerEnds> make_ends() {
  (void)tracing();  // a trace file that cannot be opened is reported before there is a process
  auto [socket_here, socket_there] = system::socket_pair();
  auto [lifeline_here, lifeline_there] = system::socket_pair();
  Ties ties{std::move(lifeline_here), system::memory_file("miniray-crash")};
  const int crash_file = ties.crash_file.get();
  return {std::move(socket_here), std::move(ties),
          WorkerEnds{std::move(socket_there), std::move(lifeline_there), crash_file}};
}

}  // namespace

class Worker::State {
 public:
  State(WorkerOptions options, Channel channel, ChildProcess process, Ties ties)
      : options_(std::move(options)),
        channel_(std::move(channel)),
        process_(std::move(process)),
        ties_(std::move(ties)),
        generation_(process_generation()) {}

  static std::unique_ptr<State> fork(const WorkFunction& work, WorkerOptions options);
  static std::unique_ptr<State> spawn(const std::vector<std::string>& command, WorkerOptions options);
  static std::unique_ptr<State> adopt(WorkerOptions options, pid_t pid, Fd socket, Ties ties);
  static std::unique_ptr<State> adopt_or_end(WorkerOptions options, pid_t pid, Fd socket, Ties ties);

  /// A call on the channel whose end of stream is explained.
  template <class Call>
  auto talk(Call call);
  /// Throws if the message is the work function's end.
  Message deliver(Message message);
  int wait(std::optional<double> timeout_s);
  void kill(int signal);
  void close(double grace_s);

  Channel& channel() { return channel_; }
  ChildProcess& process() { return process_; }
  std::string name;

 private:
  void require_ours(const char* operation) const;
  [[noreturn]] void explain_end();
  [[noreturn]] void end_of_stream() const;
  WorkerError error_in(const Message& message) const;
  bool wait_for_exit(const Deadline& deadline);
  DeathCertificate certificate();
  void report_undelivered();

  WorkerOptions options_;
  Channel channel_;
  ChildProcess process_;
  Ties ties_;
  std::uint64_t generation_;
  bool returned_ = false;
  bool killed_here_ = false;
  bool ended_by_itself_ = false;  // before it was told to
  bool told_ = false;             // the user has heard how it ended
  std::optional<WorkerError> error_;
  std::optional<DeathCertificate> certificate_;
};

std::unique_ptr<Worker::State> Worker::State::adopt(WorkerOptions options, pid_t pid, Fd socket, Ties ties) {
  const std::string name = "worker " + std::to_string(pid) + (options.name.empty() ? "" : " (" + options.name + ")");
  ChannelOptions channel;
  channel.peer = name;
  channel.codec = options.codec;
  channel.shared_memory = options.shared_memory;
  channel.spin_us = options.spin_us;
  channel.inbox_bytes_max = options.inbox_bytes_max;
  channel.on_interrupt = options.on_interrupt;
  // Only the socket's end is waited for; should somebody keep it open past the process's death, this tells.
  channel.peer_is_gone = [pid] { return !ChildProcess(pid).running(); };
  auto state = std::make_unique<State>(std::move(options), Channel(socket.release(), std::move(channel)),
                                       ChildProcess(pid), std::move(ties));
  state->name = name;
  return state;
}

// A process that cannot be talked to must not stay.
std::unique_ptr<Worker::State> Worker::State::adopt_or_end(WorkerOptions options, pid_t pid, Fd socket, Ties ties) {
  try {
    return adopt(std::move(options), pid, std::move(socket), std::move(ties));
  } catch (...) {
    ChildProcess process(pid);
    process.signal_group(SIGKILL);
    process.reap();
    throw;
  }
}

std::unique_ptr<Worker::State> Worker::State::fork(const WorkFunction& work, WorkerOptions options) {
  if (!work) throw UsageError("Worker was given an empty function");
  prepare_crash_stacks();
  const OpenMpAfterFork openmp;
  check_fork_is_safe(options, openmp);
  auto [socket, ties, ends] = make_ends();
  const std::array<int, 3> keep = ends.numbers();
  const ForkHooks hooks{options.before_fork, options.after_fork_in_parent, options.after_fork_in_child};
  const pid_t coordinator = getpid();
  const pid_t pid = fork_process(keep, hooks, [&] {
    openmp.run_in_child();
    if (openmp.needed() && options.limit_threads_in_child) options.limit_threads_in_child();
    become_worker(keep[1], keep[2]);
    ChannelOptions channel = worker_channel_options(coordinator);
    channel.codec = options.codec;
    channel.shared_memory = options.shared_memory;
    channel.spin_us = options.spin_us;
    channel.inbox_bytes_max = options.inbox_bytes_max;
    channel.on_interrupt = options.on_interrupt;
    return run_work_function(work, Channel(keep[0], std::move(channel)));
  });
  return adopt_or_end(std::move(options), pid, std::move(socket), std::move(ties));
}

std::unique_ptr<Worker::State> Worker::State::spawn(const std::vector<std::string>& command, WorkerOptions options) {
  if (command.empty()) throw UsageError("Worker::spawn was given an empty command");
  auto [socket, ties, ends] = make_ends();
  const std::array<int, 3> keep = ends.numbers();
  const std::string setting = "MINIRAY_SPAWNED=" + std::to_string(keep[0]) + "," + std::to_string(keep[1]) + "," +
                              std::to_string(keep[2]) + "," + std::to_string(getpid()) + "," +
                              (options.shared_memory ? "1," : "0,") + name_of(options.codec);
  const pid_t pid = spawn_process(command, {setting}, keep);
  return adopt_or_end(std::move(options), pid, std::move(socket), std::move(ties));
}

void Worker::State::end_of_stream() const {
  throw EndOfStream("the work function of " + name + " has returned; there are no more messages");
}

WorkerError Worker::State::error_in(const Message& message) const {
  const Value body = decode(message);
  return {name, body["type"].string(), body["message"].string(), body["traceback"].string()};
}

// The channel has ended: says why, as precisely as it can be known.
void Worker::State::explain_end() {
  told_ = true;
  if (error_) throw WorkerError(*error_);
  if (const Message* last = channel_.newest(); last != nullptr && last->kind == Message::Kind::error)
    throw error_in(*last);
  if (returned_ || (channel_.newest() != nullptr && channel_.newest()->kind == Message::Kind::end)) end_of_stream();
  if (channel_.closed() && (!process_.status() || process_.status()->exit_code == 0 || killed_here_))
    throw EndOfStream("the channel to " + name + " was closed here");
  if (!wait_for_exit(Deadline::in_ms(limits::exit_wait_ms)))
    throw EndOfStream(name + " closed its channel, though its process still runs; there are no more messages");
  throw WorkerDied(certificate());
}

template <class Call>
auto Worker::State::talk(Call call) {
  try {
    return call(channel_);
  } catch (const EndOfStream&) {
    explain_end();
  }
}

Message Worker::State::deliver(Message message) {
  if (message.kind == Message::Kind::message) return message;
  told_ = true;
  if (message.kind == Message::Kind::end) {
    returned_ = true;
    end_of_stream();
  }
  error_ = error_in(message);
  throw WorkerError(*error_);
}

void Worker::State::require_ours(const char* operation) const {
  if (generation_ != process_generation())
    throw UsageError("cannot " + std::string(operation) + " " + name + ": it belongs to the process that started it");
}

// Waits for the process to end, reading what it still sends: it may be waiting for just that.
bool Worker::State::wait_for_exit(const Deadline& deadline) {
  while (process_.running()) {
    const bool listen = !channel_.closed() && !channel_.ended();
    const short events = static_cast<short>(POLLIN | (channel_.has_unsent() ? POLLOUT : 0));
    std::array<pollfd, 2> watched{{{process_.pidfd(), POLLIN, 0}, {listen ? channel_.fileno() : -1, events, 0}}};
    system::poll_many(watched, deadline.poll_ms(limits::wait_slice_ms));
    if (options_.on_interrupt) options_.on_interrupt();
    if (watched[1].revents != 0 && channel_.inbox_is_full())
      throw InboxFull("cannot wait for " + name +
                      ": it has sent all that the inbox may hold, and cannot end before "
                      "that is received. Call recv() first, or raise inbox_bytes_max");
    if (watched[1].revents != 0) channel_.pump();
    if (watched[0].revents == 0 && deadline.passed()) return false;
  }
  process_.reap();
  return true;
}

int Worker::State::wait(std::optional<double> timeout_s) {
  require_ours("wait for");
  if (!wait_for_exit(Deadline::in_seconds(timeout_s)))
    throw TimeoutError(name + " still runs after " + std::to_string(*timeout_s) + " s");
  const ExitStatus& status = process_.reap();
  return status.signal != 0 ? -status.signal : status.exit_code;
}

void Worker::State::kill(int signal) {
  require_ours("signal");
  killed_here_ = killed_here_ || signal == SIGKILL;
  if (signal == SIGKILL)
    process_.signal_group(signal);
  else if (!process_.signal(signal))
    throw UsageError("there is no signal " + std::to_string(signal));
}

DeathCertificate Worker::State::certificate() {
  if (certificate_) return *certificate_;
  const ExitStatus& status = process_.reap();
  DeathCertificate made;
  made.worker = name;
  made.exit_code = status.exit_code;
  made.signal = status.signal;
  made.peak_bytes = status.peak_bytes;
  made.out_of_memory = status.signal == SIGKILL && !killed_here_ && out_of_memory_kills() > ties_.memory_kills;
  made.stack = demangle_stack(system::read_memory_file(ties_.crash_file.get(), limits::crash_report_bytes_max));
  made.last_messages = channel_.recent_messages();
  certificate_ = made;
  return made;
}

// An end that nobody heard of must not pass in silence.
void Worker::State::report_undelivered() {
  if (std::exchange(told_, true) || killed_here_ || returned_) return;
  const Message* last = channel_.newest();
  if (last != nullptr && last->kind == Message::Kind::end) return;
  if (last != nullptr && last->kind == Message::Kind::error) {
    std::fprintf(stderr, "miniray: nobody received this: %s\n", error_in(*last).what());
    return;
  }
  const ExitStatus& status = process_.reap();
  if (status.signal != 0 || status.exit_code > 0 || (status.exit_code == 0 && ended_by_itself_))
    std::fprintf(stderr, "miniray: nobody noticed this: %s\n", certificate().text().c_str());
}

void Worker::State::close(double grace_s) {
  if (generation_ != process_generation()) return;  // a child of the coordinator has no say over its workers
  if (!channel_.closed()) {
    channel_.pump();
    ended_by_itself_ = channel_.ended();
    channel_.close();
  }
  if (!wait_for_exit(Deadline::in_seconds(grace_s))) {
    kill(SIGKILL);
    wait_for_exit(Deadline::never());
  }
  report_undelivered();
  ties_ = {{}, {}, ties_.memory_kills};
}

Worker::Worker(const WorkFunction& work, WorkerOptions options) : state_(State::fork(work, std::move(options))) {}
Worker::Worker(std::unique_ptr<State> state) : state_(std::move(state)) {}
Worker Worker::spawn(const std::vector<std::string>& command, WorkerOptions options) {
  return Worker(State::spawn(command, std::move(options)));
}
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&& other) noexcept {
  if (this == &other) return *this;
  Worker ended(std::move(state_));
  state_ = std::move(other.state_);
  return *this;
}

Worker::~Worker() {
  if (!state_) return;
  try {
    state_->close(limits::close_grace_ms / 1000.0);
  } catch (const std::exception& error) {  // an interrupt during the grace; the worker must end all the same
    state_->process().signal_group(SIGKILL);
  }
}

void Worker::send(const Value& value) { send(encode(value, channel().codec())); }
void Worker::send(const Message& message) {
  state_->talk([&](Channel& channel) { channel.send(message); });
}
bool Worker::send_some(const Message& message) {
  return state_->talk([&](Channel& channel) { return channel.send_some(message); });
}
bool Worker::flush_some() {
  return state_->talk([](Channel& channel) { return channel.flush_some(); });
}
Value Worker::recv(const ReceiveOptions& options) { return decode(receive(options)); }
Message Worker::receive(const ReceiveOptions& options) {
  return state_->deliver(state_->talk([&](Channel& channel) { return channel.receive(options); }));
}
std::optional<Message> Worker::try_receive(std::optional<std::uint64_t> max_size) {
  std::optional<Message> message = state_->talk([&](Channel& channel) { return channel.try_receive(max_size); });
  if (!message) return message;
  return state_->deliver(std::move(*message));
}

int Worker::wait(std::optional<double> timeout_s) { return state_->wait(timeout_s); }
bool Worker::is_alive() const { return state_->process().running(); }
void Worker::kill(int signal) { state_->kill(signal); }
void Worker::close(double grace_s) { state_->close(grace_s); }
pid_t Worker::pid() const { return state_->process().pid(); }
int Worker::fileno() const { return state_->channel().fileno(); }
int Worker::pidfd() const { return state_->process().pidfd(); }
const std::string& Worker::name() const { return state_->name; }
Channel& Worker::channel() { return state_->channel(); }

std::vector<std::size_t> wait_any(std::span<Worker* const> workers, std::optional<double> timeout_s) {
  std::vector<Channel*> channels;
  channels.reserve(workers.size());
  for (Worker* worker : workers) channels.push_back(&worker->channel());
  return wait_any(std::span<Channel* const>(channels), timeout_s);
}

std::vector<std::size_t> wait_any(std::span<Worker> workers, std::optional<double> timeout_s) {
  std::vector<Channel*> channels;
  channels.reserve(workers.size());
  for (Worker& worker : workers) channels.push_back(&worker.channel());
  return wait_any(std::span<Channel* const>(channels), timeout_s);
}

}  // namespace miniray
