// The implementation of Worker: a channel, the process at its other end, and how that process ended.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "channel/seal.hpp"
#include "miniray/worker.hpp"
#include "worker/worker_process.hpp"

namespace miniray {

class Worker::State {
 public:
  static constexpr const char* class_name = "Worker";
  State(std::string worker_name, const WorkerOptions& options, SealedSocket socket,
        std::unique_ptr<WorkerProcess> process);

  /// Makes a call on the channel. If it throws EndOfStream, throws the reason instead: WorkerError, WorkerDied or a
  /// more precise EndOfStream.
  template <class Call>
  auto talk(Call call);
  /// Throws if the work function is known to have ended, because it would not receive the message. The socket does not
  /// show that: after a worker has ended, its server still reads from the connection.
  void require_running_work();
  /// Returns the message. Throws EndOfStream if it says that the work function has returned, and WorkerError if it says
  /// that the work function threw.
  Message deliver(Message message);
  int wait(std::optional<double> timeout_s);
  void kill(int signal);
  std::string stack();
  void end();
  void close(double grace_s, Closing how = Closing::finish);

  // The steps of closing, for close_all.
  /// Returns whether the process has ended and all of its messages were read. With `cut`, closes the channel of a
  /// worker that still sends messages: it has not noticed the end of the stream, and its next send fails.
  bool has_closed(bool cut);
  /// Appends the descriptors to wait for until has_closed() may have become true.
  void watch(std::vector<pollfd>& descriptors);
  void interrupt();
  /// The last step: prints a failure that no call has thrown, and closes all descriptors.
  void finish_closing();
  [[nodiscard]] bool is_ours() const { return generation_ == process_generation(); }
  [[nodiscard]] const std::function<void()>& on_interrupt() const { return on_interrupt_; }

  Channel& channel() { return channel_; }
  WorkerProcess& process() { return *process_; }
  std::string name;

 private:
  void require_ours(const char* operation) const;
  [[noreturn]] void explain_end();
  [[noreturn]] void end_of_stream() const;
  WorkerError error_in(const Message& message) const;
  bool wait_for_exit(const Deadline& deadline);
  DeathCertificate certificate();
  void read_while_closing(bool cut);
  [[nodiscard]] bool has_sent_its_end() const;
  void print_unreported_end();

  std::unique_ptr<WorkerProcess> process_;  // before channel_, whose peer_is_gone uses it
  Channel channel_;
  std::function<void()> on_interrupt_;
  std::uint64_t generation_;
  bool returned_ = false;
  bool killed_here_ = false;
  bool interrupted_here_ = false;
  std::optional<std::uint64_t> arrived_at_end_;  // how many messages had arrived when end() was called
  bool ended_by_itself_ = false;                 // the work function had ended before end() was called
  bool end_reported_ = false;                    // a call has thrown how the worker ended
  std::optional<WorkerError> error_;
};

}  // namespace miniray
