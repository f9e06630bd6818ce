#include "worker/hosted_worker.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>

#include "base/check.hpp"
#include "base/grace.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"
#include "wire/utf8.hpp"
#include "worker/pending_connection.hpp"
#include "worker/remote_process.hpp"
#include "worker/work_function.hpp"

namespace miniray {

HostedWorker::HostedWorker(std::uint64_t number, const Request& request, const WorkFunction& work,
                           Connections& connections, const WorkerServerOptions& options, EventLoop& loop,
                           SupplyStore& supplies, std::uint64_t descriptor_limit)
    : number_(number), label_(request.label), options_(options), loop_(loop), supplies_(supplies) {
  MINIRAY_CHECK(number > 0 && connections.data.valid(), number);
  auto [supply_here, supply_there] = system::socket_pair();
  supply_ = std::move(supply_here);
  const Fd output_there = options.on_output ? open_output(output_, options.on_output) : Fd();
  const Fd errors_there = options.on_output && options.on_errors ? open_output(errors_, options.on_errors) : Fd();
  network::set_blocking(connections.data.fileno(), true);
  network::notice_dead_peer(connections.data.fileno(), request.unreachable_ms);
  const int supply = supply_there.get(), output = output_there.get(),
            errors = errors_there.valid() ? errors_there.get() : output;
  std::vector<int> keep{connections.data.fileno(), supply};
  if (output_there.valid()) keep.push_back(output);
  if (errors_there.valid()) keep.push_back(errors);
  process_ = LocalProcess::fork(options.fork, keep, [&] {
    return run_in_child(request, work, connections, supply, output, errors, descriptor_limit);
  });
  MINIRAY_CHECK(process_->pid() > 0 && connections.data.valid(), process_->pid());
  data_ = std::move(connections.data.socket);
  connections.data.seal.reset();  // it is the worker's now: two processes must not seal with the same keys
  if (label_.empty()) label_ = std::to_string(process_->pid());
  exit_ = loop.watch(process_->fileno(), [this] { process_ended(); });
  supply_watch_ = loop.watch(supply_.get(), [this] {
    if (!supplies_.on_request(number_, supply_.get())) supply_watch_.reset();
  });
  resume_output();
  if (!connections.control.valid()) {  // then only the data connection shows that the coordinator is gone
    hangup_ = loop.watch(data_.get(), [this] { end(""); }, system::Interest::hangup);
    return;
  }
  connections.control.write_at_once(with_length("{}"));
  network::notice_deaf_peer(connections.control.fileno(), request.unreachable_ms);
  network::set_blocking(connections.control.fileno(), true);
  ChannelOptions control;
  control.peer = "coordinator";
  control.shared_memory = false;
  control.message_bytes_max = limits::request_bytes_max;
  control.seal = std::move(connections.control.seal);
  control_.emplace(connections.control.socket.release(), std::move(control));
  control_watch_ = loop.watch(control_->fileno(), [this] { control_ready(); });
}

HostedWorker::~HostedWorker() { supplies_.drop_worker(number_); }

int HostedWorker::run_in_child(const Request& request, const WorkFunction& work, const Connections& connections,
                               int supply, int output, int errors, std::uint64_t descriptor_limit) const {
  signal(SIGTERM, SIG_DFL);
  if (!options_.keep_interrupt_handler) signal(SIGINT, SIG_DFL);
  system::set_descriptor_limit(descriptor_limit);
  if (connections.wipe_others) connections.wipe_others();
  for (const auto& [name, value] : request.environment) system::set_environment(name, value);
  if (!request.cpus.empty()) (void)system::pin_to_cpus(request.cpus);
  if (options_.on_start_in_worker) options_.on_start_in_worker(request.environment);
  if (output >= 0) {
    system::replace_descriptor(output, STDOUT_FILENO);
    system::replace_descriptor(errors, STDERR_FILENO);
    Fd(output).reset();
    if (errors != output) Fd(errors).reset();
    // Standard output is line-buffered, so that printed lines are not lost if the process is killed. It gets a new
    // buffer, because newer versions of glibc keep filling the old one otherwise.
    static std::array<char, BUFSIZ> buffer;
    std::setvbuf(stdout, buffer.data(), _IOLBF, buffer.size());
  }
  const Value answer{{"pid", static_cast<std::int64_t>(getpid())}, {"host", network::host_name()}};
  connections.data.write_at_once(with_length(write_json(answer)));
  ChannelOptions channel;
  channel.peer = "coordinator";
  channel.seal = connections.data.seal;
  channel.codec = request.codec;
  channel.shared_memory = request.shared_memory;
  channel.spin_us = request.spin_us;
  channel.inbox_bytes_max = request.inbox_bytes_max;
  channel.message_bytes_max = std::min(request.message_bytes_max, options_.message_bytes_max);
  channel.on_interrupt = options_.on_interrupt_in_worker;
  auto line = std::make_shared<SupplyLine>(Fd(supply), options_.on_interrupt_in_worker);
  channel.supply = [line](std::uint64_t number, std::uint64_t bytes) { return line->fetch(number, bytes); };
  return run_work_function(work, Channel(connections.data.fileno(), std::move(channel)));
}

void HostedWorker::control_ready() {
  MINIRAY_CHECK(control_, number_);
  try {
    ControlTurn turn;
    while (const std::optional<Message> message = control_->try_receive()) {
      turn.take(*message);
      const Value order = decode(*message);
      if (order.find("doing") != nullptr) {
        if (ended_) continue;
        process_->ask_for_stack();
        send_stack_at_ = Deadline::in_ms(limits::stack_wait_ms / 4);
        send_stack_until_ = Deadline::in_ms(limits::stack_wait_ms);
        continue;
      }
      (void)process_->signal(static_cast<int>(order["signal"].integer()));
    }
    return;
  } catch (const std::exception&) {  // the coordinator has closed, or it sends nonsense, or without end
  }
  drop_control();
  end("");
}

void HostedWorker::drop_control() {
  control_watch_.reset();
  control_.reset();
}

void HostedWorker::end(const std::string& why) {
  MINIRAY_CHECK(data_.valid() && exit_.active() == !ended_, number_, ended_);
  hangup_.reset();
  if (ended_) {  // no coordinator is left to read the worker's last messages
    draining_.reset();
    return;
  }
  if (kill_at_) return;
  end_reason_ = why;
  kill_at_ = Deadline::in_ms(grace_ms(limits::orphan_grace_ms));
  system::shut_down(data_.get());
}

bool HostedWorker::tick() {
  // While the process runs, exit_ watches it. Afterwards, draining_ delivers its last messages until drain_until_.
  MINIRAY_CHECK(exit_.active() == !ended_, number_, ended_);
  MINIRAY_CHECK(ended_ || (!drain_until_ && !draining_.active()), number_);
  MINIRAY_CHECK(control_watch_.active() == control_.has_value(), number_, control_.has_value());
  if (kill_at_ && !ended_ && kill_at_->passed()) {
    kill();
    kill_at_ = Deadline::in_ms(limits::orphan_grace_ms);
  }
  if (send_stack_at_ && send_stack_at_->passed() &&
      (send_stack_until_.passed() || ended_ || process_->stack_is_written())) {
    send_stack_at_.reset();
    try {
      // A coordinator that reads no answer gets no further one.
      if (control_ && !ended_ && !control_->has_unsent())
        (void)control_->send_some(encode({{"doing", to_utf8(process_->take_stack())}}));
    } catch (const Error&) {  // the coordinator is gone, which control_ready() will find
    }
  }
  if (drain_until_ && drain_until_->passed()) {
    draining_.reset();
    drop_control();
  }
  return (kill_at_ && !ended_) || send_stack_at_;
}

Fd HostedWorker::open_output(OutputPipe& output,
                             const std::function<bool(const std::string&, std::string_view)>& taker) {
  auto [here, there] = system::make_pipe();
  network::set_blocking(here.get(), false);
  output.pipe = std::move(here);
  output.taker = &taker;
  return std::move(there);
}

void HostedWorker::output_ready(OutputPipe& output) {
  MINIRAY_CHECK(output.pipe.valid() && output.taker != nullptr && !ended_, number_, ended_);
  if (!read_output(output)) return;
  std::string& text = output.unfinished_line;
  const std::size_t last = text.rfind('\n');
  std::size_t complete = last == std::string::npos ? 0 : last + 1;
  if (text.size() - complete > limits::output_line_bytes_max) {
    // The last character stays: some of its bytes may be missing, and the rest of the line is then never empty.
    complete = text.size() - 1;
    while ((text[complete] & 0xC0) == 0x80 && complete > text.size() - 4) --complete;
    text.insert(complete++, 1, '\n');
  }
  if (complete == 0) return;
  const bool more = (*output.taker)(label_, std::string_view(text).substr(0, complete));
  text.erase(0, complete);
  MINIRAY_CHECK(text.size() <= limits::output_line_bytes_max, number_, text.size());
  if (!more) output.watch.reset();  // until resume_output(); meanwhile the pipe fills up, and the worker waits
}

bool HostedWorker::read_output(OutputPipe& output) {
  std::array<std::byte, limits::output_read_bytes> room;
  const system::Transfer transfer = system::read_some(output.pipe.get(), room);
  if (transfer.outcome == system::Transfer::Outcome::closed) output.watch.reset();
  if (transfer.outcome != system::Transfer::Outcome::moved) return false;
  const std::string_view text(reinterpret_cast<const char*>(room.data()), transfer.bytes);
  output.unfinished_line += text;
  tail_ += text;
  if (tail_.size() > limits::output_tail_bytes) tail_.erase(0, tail_.size() - limits::output_tail_bytes);
  return true;
}

// Reads what is in the pipe now. It does not read until the end of the pipe, because a process that the worker started
// and that left its group may print for ever.
void HostedWorker::take_last_output(OutputPipe& output) {
  MINIRAY_CHECK(ended_, number_);
  if (!output.pipe.valid()) return;
  output.watch.reset();
  for (int reads = 0; reads < limits::output_last_reads_max && read_output(output); ++reads) {
  }
  std::string& text = output.unfinished_line;
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
  if (!text.empty()) (void)(*output.taker)(label_, text);
}

void HostedWorker::resume_output() {
  for (OutputPipe* output : {&output_, &errors_})
    if (output->pipe.valid() && !ended_ && !output->watch.active())
      output->watch = loop_.watch(output->pipe.get(), [this, output] { output_ready(*output); });
}

void HostedWorker::process_ended() {
  MINIRAY_CHECK(!ended_ && !draining_.active(), number_, ended_);  // a process ends once
  exit_.reset();
  DeathCertificate ending = process_->ending();  // kills the rest of its group, so nothing more is printed
  ended_ = true;
  take_last_output(output_);
  take_last_output(errors_);  // last, because standard error often says why the worker ended
  ending.last_output = tail_;
  ending.lost = end_reason_;
  if (control_) {
    try {
      (void)control_->send_some(encode(write_ending(ending)));
    } catch (const Error&) {
      drop_control();
    }
  }
  supplies_.drop_worker(number_);
  // The coordinator may still be sending. A closed socket would answer with a reset, and the coordinator would lose
  // messages that it has not read. So the server closes only its sending direction, and drops what it receives.
  system::shut_down_writing(data_.get());
  drain_until_ = Deadline::in_ms(limits::linger_ms);
  network::set_blocking(data_.get(), false);
  hangup_.reset();
  draining_ = loop_.watch(data_.get(), [this] { drain(); });
}

void HostedWorker::drain() {
  MINIRAY_CHECK(ended_ && data_.valid(), number_, ended_);
  std::array<std::byte, limits::output_read_bytes> room;
  try {
    const system::Transfer transfer = system::receive(data_.get(), room, system::Block::no, nullptr);
    if (transfer.outcome != system::Transfer::Outcome::closed) return;
  } catch (const SystemError&) {  // the connection is broken, which is an end too
  }
  draining_.reset();
}

}  // namespace miniray
