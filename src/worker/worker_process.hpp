// The process at the other end of a worker's channel, on this machine or another: whether it runs, how it ended, and
// how to end it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "miniray/error.hpp"

namespace miniray {

class WorkerProcess {
 public:
  WorkerProcess() = default;
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  virtual ~WorkerProcess() = default;

  [[nodiscard]] virtual pid_t pid() const = 0;
  /// Returns whether the process still runs, as far as that is known without waiting.
  virtual bool running() = 0;
  /// Returns a descriptor that is readable when running() may have become false.
  virtual int fileno() = 0;
  /// Returns true if nothing more can come from the process, even if its socket does not show that.
  virtual bool is_gone() = 0;
  /// Sends a signal: SIGKILL to the process and to all processes that it started, another signal to the process only.
  /// Returns false if there is no such signal.
  virtual bool signal(int number) = 0;
  /// Returns whether SIGKILL surely ends the process. To a process on another machine, the signal may be lost.
  [[nodiscard]] virtual bool can_be_killed() const = 0;
  /// Returns the state of the process and its stack; empty if the process does not answer within a second or so.
  virtual std::string stack(const std::function<void()>& on_interrupt) = 0;
  /// Returns how the process ended; running() must have returned false. The caller adds the worker's name and its last
  /// messages to the certificate.
  virtual const DeathCertificate& ending() = 0;
  /// Returns how long to wait for the report of the end after the worker's socket has closed.
  [[nodiscard]] virtual int news_within_ms() const = 0;
  /// Closes the descriptors. Only pid() and ending() may be called afterwards.
  virtual void drop_descriptors() = 0;
};

}  // namespace miniray
