// The exceptions that MiniRay throws. All derive from Error, and each text names the operation, the peer and the cure.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// Appends a paragraph to what(), for example what MiniRay did about the error.
  void add_note(const std::string& note);
};

/// The caller made a mistake, such as an argument out of range. The call has done nothing.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A message cannot hold a value of this type. Nothing was sent, and the channel can still be used.
class Unsendable : public UsageError {
 public:
  using UsageError::UsageError;
};

/// A Value does not have what was asked of it: a key, an index, or the type.
class ValueError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// A system call failed. what() is "cannot <operation>: <the system's message>".
class SystemError : public Error {
 public:
  SystemError(const std::string& operation, int error_number);
  [[nodiscard]] int error_number() const { return error_number_; }

 private:
  int error_number_;
};

/// Nothing arrived in time. The channel can still be used, and a later call receives the late message.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A message is larger than a limit. A message that was to be received stays, for a call with a larger limit.
class MessageTooLarge : public Error {
 public:
  using Error::Error;
};

/// During a send, more messages arrived than the inbox may hold.
class InboxFull : public Error {
 public:
  using Error::Error;
};

/// The peer sent bytes that are not a message.
class ProtocolError : public Error {
 public:
  using Error::Error;
};

/// No address could be found for the name of a host.
class UnknownHost : public Error {
 public:
  using Error::Error;
};

/// A connection to a server failed: no server listens there, or it has another key, another version, or no such work
/// function.
class Refused : public Error {
 public:
  using Error::Error;
};

/// There are no more messages, because the peer has closed its end in good order.
class EndOfStream : public Error {
 public:
  using Error::Error;
};

/// The work function threw an exception. what() includes the traceback from the worker, if there is one.
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

/// What is known about the death of a worker's process.
struct DeathCertificate {
  std::string worker;
  int exit_code = -1;                       ///< -1 unless the process exited
  int signal = 0;                           ///< 0 unless a signal killed the process
  bool out_of_memory = false;               ///< the kernel's out-of-memory killer killed the process
  std::uint64_t peak_bytes = 0;             ///< the most memory that the process had resident
  std::string stack;                        ///< where the process crashed, if the crash left a stack
  std::string lost;                         ///< why nothing is known: the host or the server is gone
  std::string last_output;                  ///< the last lines that the worker printed, if MiniRay forwards its output
  std::string last_messages;                ///< the last messages in each direction, one per line
  [[nodiscard]] std::string cause() const;  ///< "killed by SIGSEGV (segmentation fault)"
  [[nodiscard]] std::string text() const;   ///< everything above, as paragraphs for people
};

/// The worker's process ended before its work function returned. what() is the text of the whole certificate.
class WorkerDied : public Error {
 public:
  explicit WorkerDied(DeathCertificate certificate);
  /// The note becomes the last paragraph of what(): what MiniRay did about the death.
  WorkerDied(DeathCertificate certificate, const std::string& note);
  [[nodiscard]] const DeathCertificate& certificate() const { return certificate_; }

 private:
  DeathCertificate certificate_;
};

/// The process of a supervised worker died, and a new one has replaced it. The worker can be used again, but messages
/// that the old process had not answered are lost.
class WorkerRestarted : public WorkerDied {
 public:
  using WorkerDied::WorkerDied;
};

}  // namespace miniray
