#include "miniray/worker.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <tuple>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/error_text.hpp"
#include "base/grace.hpp"
#include "base/log.hpp"
#include "base/system.hpp"
#include "worker/close_all.hpp"
#include "worker/local_process.hpp"
#include "worker/work_function.hpp"
#include "worker/worker_state.hpp"

namespace miniray {
namespace {

ChannelOptions channel_options(const WorkerOptions& options, std::string peer) {
  ChannelOptions channel;
  channel.peer = std::move(peer);
  channel.codec = options.codec;
  channel.shared_memory = options.shared_memory;
  channel.spin_us = options.spin_us;
  channel.inbox_bytes_max = options.inbox_bytes_max;
  channel.message_bytes_max = options.message_bytes_max;
  channel.on_interrupt = options.on_interrupt;
  return channel;
}

std::string local_name(pid_t pid, const WorkerOptions& options) {
  return "worker " + std::to_string(pid) + (options.name.empty() ? "" : " (" + options.name + ")");
}

}  // namespace

// A receive waits for the socket only. If the socket does not show that the process is gone, peer_is_gone does.
Worker::State::State(std::string worker_name, const WorkerOptions& options, SealedSocket socket,
                     std::unique_ptr<WorkerProcess> process)
    : name(std::move(worker_name)),
      process_(std::move(process)),
      channel_([&] {
        ChannelOptions channel = channel_options(options, name);
        channel.peer_is_worker = true;
        channel.peer_is_gone = [asked = process_.get()] { return asked->is_gone(); };
        channel.seal = std::move(socket.seal);
        return Channel(socket.socket.release(), std::move(channel));
      }()),
      on_interrupt_(options.on_interrupt),
      generation_(process_generation()) {}

Worker::Worker(const WorkFunction& work, WorkerOptions options) {
  if (!work) throw UsageError("Worker got an empty function; give it the function to run");
  auto [here, there] = system::socket_pair();
  const std::array<int, 1> keep{there.get()};
  const std::string coordinator = "coordinator " + std::to_string(getpid());
  auto process = LocalProcess::fork(options.fork, keep, [&] {
    return run_work_function(work, Channel(keep[0], channel_options(options, coordinator)));
  });
  const std::string name = local_name(process->pid(), options);
  state_ = std::make_unique<State>(name, options, SealedSocket{std::move(here), nullptr}, std::move(process));
}

Worker Worker::spawn(const std::vector<std::string>& command, WorkerOptions options) {
  if (command.empty()) throw UsageError("Worker::spawn got an empty command; give it the program to run");
  auto [here, there] = system::socket_pair();
  const std::array<int, 1> keep{there.get()};
  auto process = LocalProcess::spawn(command, keep, [&](int lifeline, int crash_file) {
    return "MINIRAY_SPAWNED=" + std::to_string(keep[0]) + "," + std::to_string(lifeline) + "," +
           std::to_string(crash_file) + "," + std::to_string(getpid()) + "," + (options.shared_memory ? "1," : "0,") +
           name_of(options.codec) + "," + std::to_string(options.inbox_bytes_max) + "," +
           std::to_string(options.message_bytes_max);
  });
  const std::string name = local_name(process->pid(), options);
  return Worker(std::make_unique<State>(name, options, SealedSocket{std::move(here), nullptr}, std::move(process)));
}

void Worker::State::end_of_stream() const {
  throw EndOfStream("the work function of " + name + " has returned; there are no more messages");
}

WorkerError Worker::State::error_in(const Message& message) const {
  try {
    const Value body = decode(message);
    return {name, body["type"].string(), body["message"].string(), body["traceback"].string()};
  } catch (const Error& error) {  // another implementation of the protocol may have sent it
    return {name, "an error", "its description cannot be decoded: " + std::string(error.what()), ""};
  }
}

// Called when the channel has ended. Throws the reason, as precisely as it is known.
void Worker::State::explain_end() {
  end_reported_ = true;
  if (error_) throw WorkerError(*error_);
  if (const Message* last = channel_.newest(); last != nullptr && last->kind == Message::Kind::error)
    throw error_in(*last);
  // A work function that returned because the stream was closed did not end by itself.
  const bool told_to_end = arrived_at_end_ && !ended_by_itself_;
  if ((returned_ || has_sent_its_end()) && !told_to_end) end_of_stream();
  if (channel_.closed() && (process_->running() || killed_here_ || process_->ending().exit_code == 0))
    throw EndOfStream(name + " was closed by this process; start another one");
  if (!wait_for_exit(Deadline::in_ms(process_->news_within_ms())))
    throw EndOfStream(name + " closed its channel, but its process still runs; there are no more messages");
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

void Worker::State::require_running_work() {
  if (arrived_at_end_) throw EndOfStream(name + " was closed by this process; start another one");
  if (returned_ || error_ || channel_.ended()) explain_end();
}

Message Worker::State::deliver(Message message) {
  if (message.kind != Message::Kind::end && message.kind != Message::Kind::error) return message;
  end_reported_ = true;
  if (message.kind == Message::Kind::end) {
    returned_ = true;
    if (channel_.closed()) throw EndOfStream(name + " was closed by this process; start another one");
    end_of_stream();
  }
  error_ = error_in(message);
  throw WorkerError(*error_);
}

void Worker::State::require_ours(const char* operation) const {
  if (generation_ != process_generation())
    throw UsageError("cannot " + std::string(operation) + " " + name + ": it belongs to the process that started it");
}

// Waits for the process to end. Reads what it still sends, because it may be waiting for room to send.
bool Worker::State::wait_for_exit(const Deadline& deadline) {
  while (process_->running()) {
    const bool listen = !channel_.closed() && !channel_.ended();
    const short events = static_cast<short>(POLLIN | (channel_.has_unsent() ? POLLOUT : 0));
    std::array<pollfd, 2> watched{{{process_->fileno(), POLLIN, 0}, {listen ? channel_.fileno() : -1, events, 0}}};
    system::poll_many(watched, deadline.poll_ms(limits::wait_slice_ms));
    if (on_interrupt_) on_interrupt_();
    if (watched[1].revents != 0 && channel_.inbox_is_full())
      throw InboxFull("cannot wait for " + name +
                      ": its messages fill the inbox, and it cannot end before they are received. Call recv() first, "
                      "or raise inbox_bytes_max");
    if (watched[1].revents != 0) channel_.pump();
    if (watched[0].revents == 0 && deadline.passed()) return false;
  }
  (void)process_->ending();
  return true;
}

// A process that is lost with its host has no exit code, so that is an exception.
int Worker::State::wait(std::optional<double> timeout_s) {
  require_ours("wait for");
  if (!wait_for_exit(Deadline::in_seconds(timeout_s)))
    throw TimeoutError(name + " still runs after " + number_text(*timeout_s) + " s; close() or kill() ends it");
  const DeathCertificate& ending = process_->ending();
  if (!ending.lost.empty()) throw WorkerDied(certificate());
  return ending.signal != 0 ? -ending.signal : ending.exit_code;
}

void Worker::State::kill(int signal) {
  require_ours("signal");
  killed_here_ = killed_here_ || signal == SIGKILL;
  if (!process_->signal(signal))
    throw UsageError("cannot send signal " + std::to_string(signal) + " to " + name +
                     ": there is no such signal; `kill -l` lists the signals");
}

std::string Worker::State::stack() {
  require_ours("ask");
  return process_->stack(on_interrupt_);
}

DeathCertificate Worker::State::certificate() {
  MINIRAY_CHECK(!process_->running(), name);
  DeathCertificate made = process_->ending();
  made.worker = name;
  made.last_messages = channel_.recent_messages();
  // The worker saw its stream end too, and returned. That is a consequence.
  if (made.lost.empty() && made.exit_code == 0 && channel_.cut())
    made.lost = "lost its connection to this process, which was cut on the way; its process has ended because of that";
  // A worker that finds a record changed cannot say so on this connection any more.
  if (made.lost.empty() && made.exit_code == EXIT_FAILURE && made.last_output.empty() && channel_.cut())
    made.lost =
        "exited with code 1 before its work function returned, and ended its sealed connection without a word. If "
        "somebody changes what is sent on its way, a worker ends so: the log of its server says which it was";
  return made;
}

// A failure that no call has thrown is printed, so that it does not go unnoticed.
void Worker::State::print_unreported_end() {
  if (std::exchange(end_reported_, true) || killed_here_ || interrupted_here_ || returned_) return;
  const Message* last = channel_.newest();
  if (last != nullptr && last->kind == Message::Kind::end) return;
  if (last != nullptr && last->kind == Message::Kind::error) {
    log(LogLevel::error, std::string("this error was not received: ") + error_in(*last).what());
    return;
  }
  const DeathCertificate& ending = process_->ending();
  if (!ending.lost.empty() || ending.signal != 0 || ending.exit_code > 0 || (ending.exit_code == 0 && ended_by_itself_))
    log(LogLevel::error, "this death was not noticed: " + certificate().text());
}

// Closes the sending direction only: the worker's messages are still read, because its failure may be on its way.
void Worker::State::end() {
  if (generation_ != process_generation() || channel_.closed() || arrived_at_end_) return;
  try {
    channel_.pump();
  } catch (const UsageError&) {  // another thread is using the channel
    throw;
  } catch (const Error&) {  // the worker has sent what cannot be read. It ends all the same
    channel_.close();
  }
  ended_by_itself_ = channel_.ended() || has_sent_its_end();
  arrived_at_end_ = channel_.arrived();
  try {
    channel_.end();
  } catch (const UsageError&) {
    throw;
  } catch (const Error&) {
    channel_.close();
  }
}

bool Worker::State::has_sent_its_end() const {
  const Message* last = channel_.newest();
  return last != nullptr && (last->kind == Message::Kind::error || last->kind == Message::Kind::end);
}

void Worker::State::read_while_closing(bool cut) {
  if (channel_.closed() || channel_.ended()) return;
  try {
    channel_.pump();
    const bool still_sends = channel_.arrived() > arrived_at_end_.value_or(0) && !has_sent_its_end();
    if (channel_.inbox_is_full() || (cut && still_sends)) channel_.close();
  } catch (const UsageError&) {  // another thread is using the channel
  } catch (const Error&) {       // the stream is broken
    channel_.close();
  }
}

bool Worker::State::has_closed(bool cut) {
  read_while_closing(cut);
  if (process_->running()) return false;
  read_while_closing(cut);  // the last messages, which may have come since
  // The last messages of a process on another machine may come after the report of its end.
  if (process_->can_be_killed() || channel_.closed() || channel_.ended() || has_sent_its_end()) return true;
  const DeathCertificate& ending = process_->ending();
  return ending.exit_code == 0 || !ending.lost.empty();
}

void Worker::State::watch(std::vector<pollfd>& descriptors) {
  if (process_->running()) descriptors.push_back({process_->fileno(), POLLIN, 0});
  if (!channel_.closed() && !channel_.ended()) descriptors.push_back({channel_.fileno(), POLLIN, 0});
}

void Worker::State::interrupt() {
  if (has_sent_its_end()) return;  // it is ending by itself, and its failure should be reported
  interrupted_here_ = true;
  (void)process_->signal(SIGINT);
}

void Worker::State::finish_closing() {
  if (!channel_.closed()) channel_.close();
  if (!process_->running()) {
    (void)process_->ending();
    print_unreported_end();
  }
  process_->drop_descriptors();
}

void Worker::State::close(double grace_s, Closing how) {
  if (!is_ours()) return;  // a fork of the coordinator must not end its workers
  CloseOptions options;
  options.how = how;
  options.grace_s = grace_s;
  Closer(*this, options).run();
}

Worker::Worker(std::unique_ptr<State> state) : state_(std::move(state)) {}
Worker::Worker(Worker&& other) noexcept { take(other); }
Worker& Worker::operator=(Worker&& other) noexcept {
  if (this == &other) return *this;
  close_in_destructor();
  take(other);
  return *this;
}

void Worker::take(Worker& other) noexcept {
  state_ = std::move(other.state_);
  recovery_ = std::move(other.recovery_);
  replacements_ = std::exchange(other.replacements_, 0);
  link_ = std::move(other.link_);
  if (link_) link_->worker_ = this;
}

std::shared_ptr<const WorkerLink> Worker::link() {
  (void)*state_;
  if (!link_) link_ = std::make_shared<WorkerLink>(this);
  return link_;
}

void Worker::adopt(Worker other) {
  std::swap(state_, other.state_);
  ++replacements_;
}

// recover() may replace state_, and always throws. So a caller must not use the old state after this call.
void Worker::handle_end(Patience patience) {
  if (!recovery_ || channel().closed()) return;
  const std::shared_ptr<Recovery> recovery = recovery_;
  recovery->on_end(*this, std::current_exception());
  if (patience == Patience::wait) recovery->recover(*this);
}

// Makes a call on the state, and lets the recovery handle the end of the worker if the call finds it.
template <class Call>
auto Worker::with_recovery(Patience patience, Call call) {
  try {
    return call(*state_);
  } catch (const WorkerDied&) {
    handle_end(patience);
    throw;
  } catch (const WorkerError&) {
    handle_end(patience);
    throw;
  }
}

Worker::~Worker() { close_in_destructor(); }

// A program that ends because of an exception, such as Ctrl-C, does not wait for its workers to finish. What
// on_interrupt throws during the grace is lost here, since a destructor cannot throw it; the worker has ended by then.
void Worker::close_in_destructor() noexcept {
  if (const auto link = std::move(link_)) link->worker_ = nullptr;
  const Owned<State> ended = std::move(state_);
  if (!ended) return;
  try {
    ended->close(grace_ms(limits::close_grace_ms) / 1000.0,
                 std::uncaught_exceptions() > 0 ? Closing::interrupt : Closing::finish);
  } catch (...) {
    ended->process().signal(SIGKILL);
  }
}

void Worker::send(const Value& value) { send(encode(value, channel().codec())); }
void Worker::send_message(const Message& message) {
  with_recovery(Patience::wait, [&](State& state) {
    state.require_running_work();
    state.talk([&](Channel& channel) { channel.send(message); });
  });
}
bool Worker::send_some(const Message& message) {
  return with_recovery(Patience::none, [&](State& state) {
    state.require_running_work();
    return state.talk([&](Channel& channel) { return channel.send_some(message); });
  });
}
bool Worker::flush_some() {
  return with_recovery(Patience::none,
                       [](State& state) { return state.talk([](Channel& channel) { return channel.flush_some(); }); });
}
Value Worker::recv(const ReceiveOptions& options) { return decode(receive(options)); }
Message Worker::receive(const ReceiveOptions& options) {
  return with_recovery(Patience::wait, [&](State& state) {
    return state.deliver(state.talk([&](Channel& channel) { return channel.receive(options); }));
  });
}
std::optional<Message> Worker::try_receive(std::optional<std::uint64_t> max_size, Lane lane) {
  return with_recovery(Patience::none, [&](State& state) {
    std::optional<Message> message = state.talk([&](Channel& channel) { return channel.try_receive(max_size, lane); });
    if (message) message = state.deliver(std::move(*message));
    return message;
  });
}

int Worker::wait(Timeout timeout_s) { return state_->wait(timeout_s); }
bool Worker::is_alive() const { return state_->process().running(); }
void Worker::kill(int signal) { state_->kill(signal); }
std::string Worker::stack() { return state_->stack(); }
void Worker::end() { state_->end(); }
void Worker::close(Seconds grace_s) { state_->close(grace_s); }
pid_t Worker::pid() const { return state_->process().pid(); }
int Worker::fileno() const { return state_->channel().fileno(); }
int Worker::process_fileno() const { return state_->process().fileno(); }
const std::string& Worker::name() const { return state_->name; }
Channel& Worker::channel() { return state_->channel(); }

Unsupervised::Unsupervised(std::span<Worker* const> workers) {
  for (Worker* worker : workers)
    if (worker->recovery_) supervised_.emplace_back(worker, std::move(worker->recovery_));
}
Unsupervised::~Unsupervised() {
  for (auto& [worker, recovery] : supervised_) worker->recovery_ = std::move(recovery);
}

std::vector<std::size_t> wait_any(std::span<Worker* const> workers, Timeout timeout_s) {
  std::vector<Channel*> channels;
  channels.reserve(workers.size());
  for (Worker* worker : workers) channels.push_back(&worker->channel());
  return wait_any(std::span<Channel* const>(channels), timeout_s);
}

std::vector<std::size_t> wait_any(std::span<Worker> workers, Timeout timeout_s) {
  std::vector<Channel*> channels;
  channels.reserve(workers.size());
  for (Worker& worker : workers) channels.push_back(&worker.channel());
  return wait_any(std::span<Channel* const>(channels), timeout_s);
}

}  // namespace miniray
