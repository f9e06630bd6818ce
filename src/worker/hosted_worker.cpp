#include "worker/hosted_worker.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>

#include "base/check.hpp"
#include "base/grace.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"
#include "wire/utf8.hpp"
#include "worker/newcomer.hpp"
#include "worker/remote_process.hpp"
#include "worker/work_function.hpp"

namespace miniray {

HostedWorker::HostedWorker(std::uint64_t number, const Request& request, const WorkFunction& work,
                           Connections& connections, const WorkerServerOptions& options, EventLoop& loop,
                           SupplyStore& supplies, std::uint64_t descriptor_limit)
    : number_(number), label_(request.label), options_(options), loop_(loop), supplies_(supplies) {
  MINIRAY_CHECK(number > 0 && connections.data.valid(), number, connections.data.get());
  auto [supply_here, supply_there] = system::socket_pair();
  supply_ = std::move(supply_here);
  const Fd output_there = options.on_output ? open_printed(output_, options.on_output) : Fd();
  const Fd errors_there = options.on_output && options.on_errors ? open_printed(errors_, options.on_errors) : Fd();
  network::set_blocking(connections.data.get(), true);
  network::notice_dead_peer(connections.data.get(), request.unreachable_ms);
  const int data = connections.data.get(), supply = supply_there.get(), output = output_there.get(),
            errors = errors_there.valid() ? errors_there.get() : output;
  std::vector<int> keep{data, supply};
  if (output_there.valid()) keep.push_back(output);
  if (errors_there.valid()) keep.push_back(errors);
  process_ = LocalProcess::fork(
      options.fork, keep, [&] { return run_in_child(request, work, data, supply, output, errors, descriptor_limit); });
  MINIRAY_CHECK(process_->pid() > 0 && connections.data.valid(), process_->pid());
  data_ = std::move(connections.data);
  if (label_.empty()) label_ = std::to_string(process_->pid());
  exit_ = loop.watch(process_->fileno(), [this] { process_ended(); });
  supply_watch_ = loop.watch(supply_.get(), [this] {
    if (!supplies_.asked(number_, supply_.get())) supply_watch_.reset();
  });
  resume_output();
  if (!connections.control.valid()) {  // then its own connection is all there is to tell of a coordinator that is gone
    hangup_ = loop.watch(data_.get(), [this] { dismiss(""); }, system::Interest::hangup);
    return;
  }
  write_at_once(connections.control.get(), with_length("{}"));
  network::notice_deaf_peer(connections.control.get(), request.unreachable_ms);
  network::set_blocking(connections.control.get(), true);
  ChannelOptions control;
  control.peer = "coordinator";
  control.shared_memory = false;
  control.message_bytes_max = limits::request_bytes_max;
  control_.emplace(connections.control.release(), std::move(control));
  control_watch_ = loop.watch(control_->fileno(), [this] { control_ready(); });
}

HostedWorker::~HostedWorker() { supplies_.gone(number_); }

int HostedWorker::run_in_child(const Request& request, const WorkFunction& work, int data, int supply, int output,
                               int errors, std::uint64_t descriptor_limit) const {
  signal(SIGTERM, SIG_DFL);
  if (!options_.keep_interrupt_handler) signal(SIGINT, SIG_DFL);
  system::set_descriptor_limit(descriptor_limit);
  for (const auto& [name, value] : request.environment) system::set_environment(name, value);
  if (!request.cpus.empty()) (void)system::pin_to_cpus(request.cpus);
  if (options_.on_start_in_worker) options_.on_start_in_worker(request.environment);
  if (output >= 0) {
    system::replace_descriptor(output, STDOUT_FILENO);
    system::replace_descriptor(errors, STDERR_FILENO);
    Fd(output).reset();
    if (errors != output) Fd(errors).reset();
    // A line that was printed is there even if the process is killed. The buffer is given, because newer versions of
    // glibc go on filling the one that they have.
    static std::array<char, BUFSIZ> buffer;
    std::setvbuf(stdout, buffer.data(), _IOLBF, buffer.size());
  }
  const Value answer{{"pid", static_cast<std::int64_t>(getpid())}, {"host", network::host_name()}};
  write_at_once(data, with_length(write_json(answer)));
  ChannelOptions channel;
  channel.peer = "coordinator";
  channel.codec = request.codec;
  channel.shared_memory = request.shared_memory;
  channel.spin_us = request.spin_us;
  channel.inbox_bytes_max = request.inbox_bytes_max;
  channel.on_interrupt = options_.on_interrupt_in_worker;
  auto line = std::make_shared<SupplyLine>(Fd(supply), options_.on_interrupt_in_worker);
  channel.supply = [line](std::uint64_t number, std::uint64_t bytes) { return line->fetch(number, bytes); };
  return run_work_function(work, Channel(data, std::move(channel)));
}

void HostedWorker::control_ready() {
  MINIRAY_CHECK(control_, number_);
  try {
    while (const std::optional<Message> message = control_->try_receive()) {
      const Value order = decode(*message);
      if (order.find("doing") != nullptr) {
        if (ended_) continue;
        process_->ask_for_stack();
        tell_stack_at_ = Deadline::in_ms(limits::stack_wait_ms / 4);
        continue;
      }
      (void)process_->signal(static_cast<int>(order["signal"].integer()));
    }
    return;
  } catch (const std::exception&) {  // it has left, or makes no sense
  }
  forget_control();
  dismiss("");
}

void HostedWorker::forget_control() {
  control_watch_.reset();
  control_.reset();
}

void HostedWorker::dismiss(const std::string& why) {
  MINIRAY_CHECK(data_.valid() && exit_.active() == !ended_, number_, ended_);
  hangup_.reset();
  if (ended_) {  // nobody is left to take its last words
    draining_.reset();
    return;
  }
  if (kill_at_) return;
  dismissed_why_ = why;
  kill_at_ = Deadline::in_ms(grace_ms(limits::orphan_grace_ms));
  system::shut_down(data_.get());
}

bool HostedWorker::tick() {
  // While its process runs, its end is waited for; afterwards, what it said last is delivered for so long at most.
  MINIRAY_CHECK(exit_.active() == !ended_, number_, ended_);
  MINIRAY_CHECK(ended_ || (!drain_until_ && !draining_.active()), number_);
  MINIRAY_CHECK(control_watch_.active() == control_.has_value(), number_, control_.has_value());
  if (kill_at_ && !ended_ && kill_at_->passed()) {
    kill();
    kill_at_ = Deadline::in_ms(limits::orphan_grace_ms);
  }
  if (tell_stack_at_ && tell_stack_at_->passed()) {
    tell_stack_at_.reset();
    try {
      if (control_ && !ended_) (void)control_->send_some(encode({{"doing", to_utf8(process_->take_stack())}}));
    } catch (const Error&) {  // its end will be noticed
    }
  }
  if (drain_until_ && drain_until_->passed()) {
    draining_.reset();
    forget_control();
  }
  return (kill_at_ && !ended_) || tell_stack_at_;
}

Fd HostedWorker::open_printed(Printed& printed,
                              const std::function<bool(const std::string&, std::string_view)>& taker) {
  auto [here, there] = system::make_pipe();
  network::set_blocking(here.get(), false);
  printed.pipe = std::move(here);
  printed.taker = &taker;
  return std::move(there);
}

void HostedWorker::output_ready(Printed& printed) {
  MINIRAY_CHECK(printed.pipe.valid() && printed.taker != nullptr && !ended_, number_, ended_);
  if (!read_output(printed)) return;
  std::string& text = printed.unfinished_line;
  const std::size_t last = text.rfind('\n');
  std::size_t complete = last == std::string::npos ? 0 : last + 1;
  if (text.size() - complete > limits::output_line_bytes_max) {
    // A character stays: half of it may be missing, and what is left of the line is then never empty.
    complete = text.size() - 1;
    while ((text[complete] & 0xC0) == 0x80 && complete > text.size() - 4) --complete;
    text.insert(complete++, 1, '\n');
  }
  if (complete == 0) return;
  const bool more = (*printed.taker)(label_, std::string_view(text).substr(0, complete));
  text.erase(0, complete);
  MINIRAY_CHECK(text.size() <= limits::output_line_bytes_max, number_, text.size());
  if (!more) printed.watch.reset();
}

bool HostedWorker::read_output(Printed& printed) {
  std::array<std::byte, limits::output_read_bytes> room;
  const system::Transfer transfer = system::read_some(printed.pipe.get(), room);
  if (transfer.outcome == system::Transfer::Outcome::closed) printed.watch.reset();
  if (transfer.outcome != system::Transfer::Outcome::moved) return false;
  const std::string_view text(reinterpret_cast<const char*>(room.data()), transfer.bytes);
  printed.unfinished_line += text;
  tail_ += text;
  if (tail_.size() > limits::output_tail_bytes) tail_.erase(0, tail_.size() - limits::output_tail_bytes);
  return true;
}

// What is in the pipe, and no more: a process that left the group may go on printing.
void HostedWorker::take_last_output(Printed& printed) {
  MINIRAY_CHECK(ended_, number_);
  if (!printed.pipe.valid()) return;
  printed.watch.reset();
  for (int reads = 0; reads < limits::output_last_reads_max && read_output(printed); ++reads) {
  }
  std::string& text = printed.unfinished_line;
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
  if (!text.empty()) (void)(*printed.taker)(label_, text);
}

void HostedWorker::resume_output() {
  for (Printed* printed : {&output_, &errors_})
    if (printed->pipe.valid() && !ended_ && !printed->watch.active())
      printed->watch = loop_.watch(printed->pipe.get(), [this, printed] { output_ready(*printed); });
}

void HostedWorker::process_ended() {
  MINIRAY_CHECK(!ended_ && !draining_.active(), number_, ended_);  // it ends once
  exit_.reset();
  DeathCertificate ending = process_->ending();  // kills what is left of its group, so its pipe has an end
  ended_ = true;
  take_last_output(output_);
  take_last_output(errors_);  // after it: the last of them often says why
  ending.last_output = tail_;
  ending.lost = dismissed_why_;
  if (control_) {
    try {
      (void)control_->send_some(encode(write_ending(ending)));
    } catch (const Error&) {
      forget_control();
    }
  }
  supplies_.gone(number_);
  // The coordinator may still be sending: a closed socket would answer with a reset, which overtakes what it has not
  // read yet. So the end is announced, and the rest is thrown away.
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
  } catch (const SystemError&) {  // no different
  }
  draining_.reset();
}

}  // namespace miniray
