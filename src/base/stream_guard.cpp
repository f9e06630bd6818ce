#include "base/stream_guard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// Global, because a signal handler gets no argument of its own.
struct Guarded {
  int descriptor = -1;
  itimerspec silence{};
  timer_t timer{};
  struct sigaction before{};
} guarded;

// Returns whether the stream has ended, even if bytes from before its end were not read.
bool has_ended() {
  pollfd stream{guarded.descriptor, POLLIN | POLLRDHUP, 0};
  return poll(&stream, 1, 0) > 0 && (stream.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

// Called when something happens on the stream, and when the timer of the silence runs out.
void on_signal(int, siginfo_t* info, void*) {
  const int error_number = errno;
  if (info->si_code == SI_TIMER || has_ended()) kill(-getpgrp(), SIGKILL);
  timer_settime(guarded.timer, 0, &guarded.silence, nullptr);
  errno = error_number;
}

}  // namespace

StreamGuard::StreamGuard(int descriptor, int silence_ms_max) {
  MINIRAY_CHECK(guarded.descriptor < 0 && silence_ms_max > 0, guarded.descriptor, silence_ms_max);
  guarded.descriptor = descriptor;
  guarded.silence.it_value = {silence_ms_max / 1000, (silence_ms_max % 1000) * 1'000'000L};
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGIO;
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  const bool held =
      timer_create(CLOCK_MONOTONIC, &event, &guarded.timer) == 0 && sigaction(SIGIO, &action, &guarded.before) == 0 &&
      timer_settime(guarded.timer, 0, &guarded.silence, nullptr) == 0 && fcntl(descriptor, F_SETOWN, getpid()) == 0 &&
      fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_ASYNC) == 0;
  if (!held) {
    guarded.descriptor = -1;  // a caller may catch the error and continue without a guard
    throw SystemError("tie a process to a stream", errno);
  }
  if (has_ended()) kill(-getpgrp(), SIGKILL);  // it ended before the signal was set up
}

StreamGuard::~StreamGuard() {
  fcntl(guarded.descriptor, F_SETFL, fcntl(guarded.descriptor, F_GETFL) & ~O_ASYNC);
  timer_delete(guarded.timer);
  sigaction(SIGIO, &guarded.before, nullptr);
  guarded.descriptor = -1;
}

}  // namespace miniray
