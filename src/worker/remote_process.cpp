#include "worker/remote_process.hpp"

#include <signal.h>

#include <cerrno>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/network.hpp"
#include "base/shown_text.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

Channel control_channel(SealedSocket line, const std::string& where, int unreachable_ms) {
  network::notice_deaf_peer(line.fileno(), unreachable_ms);
  ChannelOptions options;
  options.peer = "the server at " + where;
  options.shared_memory = false;
  options.message_bytes_max = limits::control_message_bytes_max;
  options.spin_us = 0;
  options.seal = std::move(line.seal);
  return Channel(line.socket.release(), std::move(options));
}

}  // namespace

Value write_ending(const DeathCertificate& ending) {
  return {{"exit_code", ending.exit_code},
          {"signal", ending.signal},
          {"out_of_memory", ending.out_of_memory},
          {"stack", to_utf8(ending.stack)},
          {"peak_bytes", ending.peak_bytes},
          {"lost", ending.lost},
          {"last_output", to_utf8(ending.last_output)}};
}

DeathCertificate read_ending(const Value& news) {
  DeathCertificate ending;
  ending.exit_code = static_cast<int>(news["exit_code"].integer());
  ending.signal = static_cast<int>(news["signal"].integer());
  ending.out_of_memory = news["out_of_memory"].boolean();
  ending.stack = news["stack"].string();
  ending.peak_bytes = news["peak_bytes"].unsigned_integer();
  ending.lost = news["lost"].string();
  ending.last_output = news["last_output"].string();
  return ending;
}

RemoteProcess::RemoteProcess(SealedSocket control, pid_t pid, std::string where, int unreachable_ms, bool same_machine)
    : pid_(pid),
      where_(std::move(where)),
      unreachable_ms_(unreachable_ms),
      same_machine_(same_machine),
      tunnelled_(system::is_unix_socket(control.fileno()) && !where_.starts_with('@')),
      control_(control_channel(std::move(control), where_, unreachable_ms)) {}

const DeathCertificate& RemoteProcess::ending() {
  MINIRAY_CHECK(ending_, pid_, where_);
  return *ending_;
}

bool RemoteProcess::running() {
  if (!ending_) read_control();
  return !ending_;
}

int RemoteProcess::fileno() { return control_.fileno(); }

void RemoteProcess::set_lost(std::string how) {
  DeathCertificate made;
  made.lost = std::move(how);
  ending_ = made;
}

void ControlTurn::take(const Message& message) {
  bytes_ += limits::inbox_message_bytes + message.size();
  if (bytes_ > limits::control_turn_bytes_max)
    throw ProtocolError("control messages without end: more than " +
                        std::to_string(limits::control_turn_bytes_max / limits::mib) + " MiB at once");
}

// Reads what the server has sent, without waiting. It does not throw: if the connection is broken, the process is lost.
void RemoteProcess::read_control() {
  try {
    ControlTurn turn;
    while (const std::optional<Message> message = control_.try_receive()) {
      turn.take(*message);
      take_news(decode(*message));
    }
  } catch (const EndOfStream&) {
    if (ending_) return;
    // A reset or a broken pipe comes from the host of the server, so the host is alive. Other errors mean silence.
    const bool silent =
        control_.end_error() != 0 && control_.end_error() != ECONNRESET && control_.end_error() != EPIPE;
    if (same_machine_)
      return set_lost(
          "is gone with the server process on this machine that had started it, which ended without notice (was it "
          "killed? dmesg shows whether memory ran out)");
    if (tunnelled_)
      return set_lost("is unreachable: the ssh connection to " + where_ +
                      " has ended, or the worker server there has ended without notice (was it killed?)");
    set_lost(silent ? "is unreachable: its host did not answer for " + std::to_string(unreachable_ms_ / 1000) +
                          " s. Check the host and the network; the processes there end by themselves"
                    : "is gone with its worker server at " + where_ + ", which ended without notice (was it killed?)");
  } catch (const UsageError&) {  // another thread is reading, or this process is a fork of the coordinator
  } catch (const Error& error) {
    set_lost("is unreachable, because its server sent something that makes no sense: " + std::string(error.what()));
  }
}

void RemoteProcess::take_news(const Value& news) {
  try {
    if (const Value* stack = news.find("doing"))
      stack_ = shown(stack->string(), Colours::keep);  // people print it
    else
      ending_ = read_ending(news);
  } catch (const UsageError& error) {  // a value of another type than it should have
    throw ProtocolError(in_quotes(news.text()) + " (" + error.what() + ")");
  }
}

std::string RemoteProcess::stack(const std::function<void()>& on_interrupt) {
  stack_.reset();
  if (!running()) return {};
  const Deadline deadline = Deadline::in_ms(limits::stack_wait_ms + limits::crash_names_ms);
  try {
    control_.send_some(encode({{"doing", true}}));
  } catch (const EndOfStream&) {
    read_control();
  }
  while (running() && !stack_ && !deadline.passed()) {
    (void)system::poll_one(fileno(), POLLIN, deadline.poll_ms(limits::wait_slice_ms));
    if (on_interrupt) on_interrupt();
  }
  return stack_ ? *stack_ : "its server at " + where_ + " does not answer\n";
}

bool RemoteProcess::signal(int number) {
  if (number < 0 || number > SIGRTMAX) return false;  // checked here, because the server does not answer
  if (!running()) return true;
  try {
    control_.send_some(encode({{"signal", number}}));
  } catch (const EndOfStream&) {
    read_control();
  }
  return true;
}

}  // namespace miniray
