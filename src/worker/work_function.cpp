#include "worker/work_function.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/crash.hpp"
#include "base/error_text.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/throw_stack.hpp"
#include "miniray/error.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

// The text of an exception may have any bytes; a string in a message must be UTF-8.
void send_failure(Channel& channel, const WorkFailure& failure) {
  const Value body{{"type", to_utf8(failure.type)},
                   {"message", to_utf8(failure.message)},
                   {"traceback", to_utf8(failure.traceback)}};
  try {
    channel.discard_received();
    Message message = encode(body);
    message.kind = Message::Kind::error;
    channel.send(message);
  } catch (const Error&) {                            // the coordinator is gone, so the failure is printed
    if (failure.type == "KeyboardInterrupt") return;  // the user, who pressed Ctrl-C, knows
    std::string text = "the work function in process " + std::to_string(getpid()) + " raised " + failure.type + ": " +
                       failure.message + "\n" + failure.traceback;
    while (text.ends_with('\n')) text.pop_back();
    log(LogLevel::error, text);
  }
}

void send_end(Channel& channel) {
  try {
    channel.discard_received();
    Message message;
    message.kind = Message::Kind::end;
    channel.send(message);
  } catch (const Error&) {
    // The coordinator is gone or has closed, which is not a failure of the work function.
  }
}

}  // namespace

int run_work_function(const WorkFunction& work, Channel channel) {
  Handle handle(std::move(channel));
  try {
    work(handle);
    send_end(handle.channel());
    return EXIT_SUCCESS;
  } catch (const ThrowProbe&) {  // never: it notes where an exception was thrown
  } catch (const WorkExit& exit) {
    if (exit.code == EXIT_SUCCESS) send_end(handle.channel());
    return exit.code;
  } catch (const WorkFailure& failure) {
    send_failure(handle.channel(), failure);
  } catch (const EndOfStream& end) {
    // The coordinator has closed, so the work is done. A handle that the work has moved cannot tell.
    if (!handle.channel().valid() || handle.channel().ended()) return EXIT_SUCCESS;
    send_failure(handle.channel(), {type_name(end), end.what(), last_throw_stack()});
  } catch (const std::exception& error) {
    send_failure(handle.channel(), {type_name(error), error.what(), last_throw_stack()});
  } catch (...) {
    send_failure(handle.channel(), {"an exception", "it does not derive from std::exception", last_throw_stack()});
  }
  return EXIT_FAILURE;
}

void become_worker(int lifeline, int crash_file) {
  hold_lifeline(lifeline);
  write_crash_stacks_to(crash_file);
}

int run_spawned(const WorkFunction& work) {
  const char* setting = std::getenv("MINIRAY_SPAWNED");
  int channel = -1, lifeline = -1, crash_file = -1, coordinator = -1, shared_memory = 0;
  char codec[16] = {};
  unsigned long inbox_bytes_max = 0, message_bytes_max = 0;
  if (setting == nullptr || std::sscanf(setting, "%d,%d,%d,%d,%d,%15[a-z],%lu,%lu", &channel, &lifeline, &crash_file,
                                        &coordinator, &shared_memory, codec, &inbox_bytes_max, &message_bytes_max) != 8)
    throw UsageError("this program was not started by Worker::spawn; start its coordinator instead");
  unsetenv("MINIRAY_SPAWNED");  // the children of this process must not see it
  become_worker(lifeline, crash_file);
  ChannelOptions options;
  options.peer = "coordinator " + std::to_string(coordinator);
  options.codec = parse_codec(codec);
  options.shared_memory = shared_memory != 0;
  options.inbox_bytes_max = inbox_bytes_max;
  options.message_bytes_max = message_bytes_max;
  return run_work_function(work, Channel(channel, options));
}

}  // namespace miniray
