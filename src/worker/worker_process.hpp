// The process at the other end of a worker's channel, wherever it runs: whether it lives, how it ended, how to end it.
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
  /// Whether it still runs, as far as that is known without waiting.
  virtual bool running() = 0;
  /// Readable when running() may have become false.
  virtual int fileno() = 0;
  /// Whether nothing more can come from it, though its socket has not said so.
  virtual bool is_gone() = 0;
  /// SIGKILL goes to it and to all that it started, another signal to it alone. False if there is no such signal.
  virtual bool signal(int number) = 0;
  /// Whether SIGKILL is sure to end it, however long that takes; a server far away may not even hear of it.
  [[nodiscard]] virtual bool can_be_killed() const = 0;
  /// What it is doing: its state, and where each of its threads is. Empty if it does not say within a second or so.
  virtual std::string stack(const std::function<void()>& on_interrupt) = 0;
  /// How it ended, once it has; the certificate's worker and messages are the caller's to fill in.
  virtual const DeathCertificate& ending() = 0;
  /// How long to wait for news of an end after its socket closed.
  [[nodiscard]] virtual int news_within_ms() const = 0;
  /// Nobody will ask any more: descriptors are given back.
  virtual void forget() = 0;
};

}  // namespace miniray
