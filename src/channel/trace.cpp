#include "channel/trace.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "miniray/error.hpp"
#include "wire/json_text.hpp"

namespace miniray {
namespace {

// Returns the descriptor that lines go to, or -1. It stays open as long as the process lives, and forked workers
// inherit it.
int trace_descriptor() {
  static const int descriptor = [] {
    const char* setting = std::getenv("MINIRAY_TRACE");
    if (setting == nullptr || std::string_view(setting).empty() || std::string_view(setting) == "0") return -1;
    if (std::string_view(setting) == "1") return STDERR_FILENO;
    const int file = open(setting, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) throw SystemError("open the trace file that MINIRAY_TRACE names, " + std::string(setting), errno);
    return file;
  }();
  return descriptor;
}

const char* kind_text(Message::Kind kind) {
  switch (kind) {
    case Message::Kind::message:
      return "";
    case Message::Kind::error:
      return R"(, "kind": "error")";
    case Message::Kind::end:
      return R"(, "kind": "end")";
    case Message::Kind::call:
      return R"(, "kind": "call")";
    case Message::Kind::reply:
      return R"(, "kind": "reply")";
    case Message::Kind::drop:
      return R"(, "kind": "drop")";
    case Message::Kind::keep:
      return R"(, "kind": "keep")";
    case Message::Kind::forget:
      return R"(, "kind": "forget")";
    case Message::Kind::share:
    case Message::Kind::unshare:
    case Message::Kind::ring:
    case Message::Kind::bell:
      break;  // these frames are not messages, and are not traced
  }
  return "";
}

}  // namespace

bool tracing() { return trace_descriptor() >= 0; }

timespec trace_time() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return time;
}

void trace(Direction direction, const std::string& peer, const Message& message, const timespec& time) {
  char head[96];
  std::snprintf(head, sizeof(head), R"({"time": %lld.%06ld, "pid": %d, "direction": "%s", "peer": )",
                static_cast<long long>(time.tv_sec), time.tv_nsec / 1000, getpid(),
                direction == Direction::sent ? "sent" : "received");
  std::string line = head;
  append_json_string(line, peer);
  line += ", \"bytes\": " + std::to_string(message.size());
  line += kind_text(message.kind);
  if (has_call_head(message.kind)) line += R"(, "number": )" + std::to_string(message.head.number);
  if (!message.body.empty()) line += R"(, "body": )" + text_of(message.codec, message.body);
  line += "}\n";
  [[maybe_unused]] const ssize_t written =
      write(trace_descriptor(), line.data(), line.size());  // one write, so that lines of processes do not mix
}

}  // namespace miniray
