// The exceptions that MiniRay throws. All derive from Error; each text names the operation, the peer and the remedy.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace miniray {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// Appends a paragraph to the text: what was done about the error.
  void add_note(const std::string& note);
};

/// The caller passed something that cannot be right. Nothing was done.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A value of a kind that no message can hold. Nothing was sent, and the channel is still good.
class Unsendable : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Code that runs in the worker reached for something that is not there: a key, an index, another type.
class ValueError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// The operating system refused.
class SystemError : public Error {
 public:
  SystemError(const std::string& operation, int error_number);
  [[nodiscard]] int error_number() const { return error_number_; }

 private:
  int error_number_;
};

/// Nothing arrived in time. The channel is still good and the late message is not lost.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A message is larger than a limit. What was to be received is still there, for a call with a larger limit.
class MessageTooLarge : public Error {
 public:
  using Error::Error;
};

/// More arrived during a send than the inbox may hold.
class InboxFull : public Error {
 public:
  using Error::Error;
};

/// The peer sent bytes that are not a message.
class ProtocolError : public Error {
 public:
  using Error::Error;
};

/// No host of that name is known.
class UnknownHost : public Error {
 public:
  using Error::Error;
};

/// A server, or the way to it, said no: nobody listens, another key, another version, no such work function.
class Refused : public Error {
 public:
  using Error::Error;
};

/// There are no more messages: the other side has finished, in good order.
class EndOfStream : public Error {
 public:
  using Error::Error;
};

/// The work function raised. what() has the remote traceback.
class WorkerError : public Error {
 public:
  WorkerError(std::string worker, std::string type, std::string message, std::string traceback);
  [[nodiscard]] const std::string& worker() const { return worker_; }
  [[nodiscard]] const std::string& type() const { return type_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] const std::string& traceback() const { return traceback_; }

 private:
  std::string worker_, type_, message_, traceback_;
};

/// What is known of a worker's death.
struct DeathCertificate {
  std::string worker;
  int exit_code = -1;                       ///< -1 unless it exited
  int signal = 0;                           ///< 0 unless a signal killed it
  bool out_of_memory = false;               ///< the kernel's out-of-memory killer was at work
  std::uint64_t peak_bytes = 0;             ///< the most memory it had resident
  std::string stack;                        ///< where it crashed, if the crash left a stack
  std::string lost;                         ///< why nothing is known of its end: its host or its server is gone
  std::string last_output;                  ///< the last lines that it printed, where MiniRay carries them
  std::string last_messages;                ///< the last messages each way, a line each
  [[nodiscard]] std::string cause() const;  ///< "killed by SIGSEGV (segmentation fault)"
  [[nodiscard]] std::string text() const;
};

/// The worker's process ended without its work function returning. what() is the whole certificate.
class WorkerDied : public Error {
 public:
  explicit WorkerDied(DeathCertificate certificate);
  /// With a last line of what was done about it.
  WorkerDied(DeathCertificate certificate, const std::string& note);
  [[nodiscard]] const DeathCertificate& certificate() const { return certificate_; }

 private:
  DeathCertificate certificate_;
};

/// A supervised worker's process died, and another has taken its place: the worker can be used again, but what had been
/// sent to the old process, and not answered, is lost.
class WorkerRestarted : public WorkerDied {
 public:
  using WorkerDied::WorkerDied;
};

}  // namespace miniray
