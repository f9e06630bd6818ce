#include "base/crash.hpp"

#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/process.hpp"
#include "base/stack_text.hpp"
#include "base/stack_trace.hpp"
#include "base/system.hpp"
#include "miniray/limits.hpp"

// AddressSanitizer has this function. A program that is built without it has none.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the name is the sanitizer's
extern "C" [[gnu::weak]] void __asan_set_error_report_callback(void (*callback)(const char* report));

namespace miniray {
namespace {

constexpr std::array fatal_signals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

int crash_stacks_to = -1;  // global, because a signal handler gets no argument
bool names_are_wanted = true;

void write_text(int descriptor, std::string_view text) {
  [[maybe_unused]] const ssize_t written = write(descriptor, text.data(), text.size());
}

void write_text_line(int descriptor, std::string_view line) {
  write_text(descriptor, line);
  write_text(descriptor, "\n");
}

struct NamesWork {
  const StackTrace& stack;
  int descriptor;
};

void write_names_and_nothing_else(const void* argument) {
  const auto& work = *static_cast<const NamesWork*>(argument);
  for (const int number : fatal_signals) signal(number, SIG_DFL);
  work.stack.write_names(work.descriptor);
}

// Finding names takes memory and reads files, and what has crashed may have left anything broken. So a child, which has
// a copy of this process's memory, does that, and may crash or hang in its turn.
void write_names_in_child(int descriptor, const StackTrace& stack, int milliseconds_max) {
  write_text_line(descriptor, names_begin);
  const NamesWork work{stack, descriptor};
  if (!run_in_bare_child(milliseconds_max, write_names_and_nothing_else, &work))
    write_text_line(descriptor, names_begin);  // begun again, with nothing in it
}

void write_stack_here(const StackTrace& stack, std::string_view title, std::string_view signal, int names_ms_max) {
  write_text(crash_stacks_to, title);
  write_text(crash_stacks_to, signal);
  write_text_line(crash_stacks_to, ":");
  stack.write_addresses(crash_stacks_to);
  if (names_are_wanted) write_names_in_child(crash_stacks_to, stack, names_ms_max);
  write_text_line(crash_stacks_to, stack_ends);
}

void on_stack_signal(int) {
  const int error = errno;
  StackTrace stack;
  stack.take();
  write_stack_here(stack, stack_title, "", limits::stack_wait_ms);
  errno = error;
}

void on_fatal_signal(int number, siginfo_t* info, void* interrupted) {
  const char* name = sigabbrev_np(number);
  StackTrace stack;
  stack.take(interrupted, info->si_code == SI_TKILL);  // by raise()
  write_stack_here(stack, "C++ stack at SIG", name != nullptr ? name : "?", limits::crash_names_ms);
  signal(number, SIG_DFL);  // the default action kills the process, so that its parent sees this signal
  raise(number);
}

void on_asan_report(const char* report) {
  write_text_line(crash_stacks_to, asan_title);
  write_text(crash_stacks_to, report);
}

// AddressSanitizer's own handlers stay, because its report says more than a stack does.
bool has_handler_of_asan(int number) {
  struct sigaction action{};
  return __asan_set_error_report_callback != nullptr && sigaction(number, nullptr, &action) == 0 &&
         action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN && action.sa_sigaction != on_fatal_signal;
}

}  // namespace

void prepare_crash_stacks() {
  static const int loaded = [] {
    const char* const setting = std::getenv("MINIRAY_STACKS");
    names_are_wanted = setting == nullptr || std::string_view(setting) != "0";
    std::array<void*, 1> frame{};
    return backtrace(frame.data(), 1);  // the first call loads libgcc
  }();
  (void)loaded;
}

bool stacks_are_wanted() {
  prepare_crash_stacks();
  return names_are_wanted;
}

void write_titled_stack(int descriptor, const char* title, const StackTrace& stack) {
  write_text_line(descriptor, title);
  stack.write_addresses(descriptor);
  write_text_line(descriptor, names_begin);
  stack.write_names(descriptor);
  write_text_line(descriptor, stack_ends);
}

void write_crash_stacks_to(int descriptor) {
  crash_stacks_to = descriptor;
  prepare_crash_stacks();
  if (__asan_set_error_report_callback != nullptr) __asan_set_error_report_callback(on_asan_report);
  // The handler has a stack of its own, so that it can report a stack overflow too.
  static std::array<char, limits::crash_handler_stack_bytes> handler_stack;
  stack_t alternative{};
  alternative.ss_sp = handler_stack.data();
  alternative.ss_size = handler_stack.size();
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fatal_signal;
  action.sa_flags = SA_ONSTACK | SA_SIGINFO | static_cast<int>(SA_RESETHAND);
  for (const int number : fatal_signals) {
    if (!has_handler_of_asan(number)) sigaction(number, &action, nullptr);
  }
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

std::uint64_t out_of_memory_kills() {
  const std::string text = system::read_small_file("/proc/vmstat");
  const std::size_t at = text.find("\noom_kill ");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + 10, nullptr, 10);
}

}  // namespace miniray
