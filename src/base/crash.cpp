#include "base/crash.hpp"

#include <cxxabi.h>
#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "base/system.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr std::array fatal_signals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

int crash_stacks_to = -1;  // global, because a signal handler gets no argument

void write_text(const char* text) {
  [[maybe_unused]] const ssize_t written = write(crash_stacks_to, text, strlen(text));
}

void write_stack() {
  std::array<void*, limits::crash_frames_max> frames{};
  const int count = backtrace(frames.data(), limits::crash_frames_max);
  backtrace_symbols_fd(frames.data(), count, crash_stacks_to);
}

void on_stack_signal(int) {
  const int error = errno;
  write_text("C++ stack:\n");
  write_stack();
  errno = error;
}

void on_fatal_signal(int number) {
  const char* name = sigabbrev_np(number);
  write_text("C++ stack at SIG");
  write_text(name != nullptr ? name : "?");
  write_text(":\n");
  write_stack();
  signal(number, SIG_DFL);  // the default action kills the process, so that its parent sees this signal
  raise(number);
}

}  // namespace

void prepare_crash_stacks() {
  static const int loaded = [] {
    std::array<void*, 1> frame{};
    return backtrace(frame.data(), 1);  // the first call loads libgcc
  }();
  (void)loaded;
}

void write_crash_stacks_to(int descriptor) {
  crash_stacks_to = descriptor;
  prepare_crash_stacks();
  // The handler has a stack of its own, so that it can report a stack overflow too.
  static std::array<char, limits::crash_handler_stack_bytes> handler_stack;
  stack_t alternative{};
  alternative.ss_sp = handler_stack.data();
  alternative.ss_size = handler_stack.size();
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_handler = on_fatal_signal;
  action.sa_flags = SA_ONSTACK | static_cast<int>(SA_RESETHAND);
  for (const int number : fatal_signals) sigaction(number, &action, nullptr);
  action.sa_handler = on_stack_signal;
  action.sa_flags = SA_RESTART;  // on the usual stack, because a crash handler may be using the other one
  sigaction(stack_signal(), &action, nullptr);
  sigset_t answered;
  sigemptyset(&answered);
  sigaddset(&answered, stack_signal());
  pthread_sigmask(SIG_UNBLOCK, &answered, nullptr);  // fork_process() and spawn_process() have blocked it
}

int stack_signal() { return SIGRTMAX - 2; }

std::string process_state(int pid) {
  const std::string text = system::read_small_file(("/proc/" + std::to_string(pid) + "/stat").c_str());
  const std::size_t after_name = text.rfind(')');  // the name may contain spaces and parentheses
  char state = '?';
  unsigned long user_ticks = 0, system_ticks = 0;
  if (after_name == std::string::npos ||
      std::sscanf(text.c_str() + after_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &state,
                  &user_ticks, &system_ticks) != 3)
    return "gone";
  const char* name = state == 'R'                   ? "running"
                     : state == 'S'                 ? "sleeping"
                     : state == 'D'                 ? "waiting for a disk or a driver"
                     : state == 'T' || state == 't' ? "stopped"
                                                    : "ending";
  const auto seconds = static_cast<double>(user_ticks + system_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  std::array<char, 80> made{};
  std::snprintf(made.data(), made.size(), "%s, after %.1f s of computing", name, seconds);
  return made.data();
}

int crash_descriptor() { return crash_stacks_to; }

std::string demangle_stack(const std::string& stack) {
  std::istringstream lines(stack);
  std::string line, readable;
  while (std::getline(lines, line)) {  // "program(_Z3foov+0x1d) [0x...]"
    const std::size_t open = line.find("(_Z");
    const std::size_t plus = line.find('+', open);
    if (open != std::string::npos && plus != std::string::npos) {
      const std::string symbol = line.substr(open + 1, plus - open - 1);
      int status = 0;
      const std::unique_ptr<char, decltype(&std::free)> name(
          abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
      if (status == 0) line = line.substr(0, open + 1) + name.get() + line.substr(plus);
    }
    readable += line + '\n';
  }
  return readable;
}

std::uint64_t out_of_memory_kills() {
  const std::string text = system::read_small_file("/proc/vmstat");
  const std::size_t at = text.find("\noom_kill ");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + 10, nullptr, 10);
}

}  // namespace miniray
