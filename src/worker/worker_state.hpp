// The inside of a Worker: a channel, the process at its other end, and the story of how it ended.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "miniray/worker.hpp"
#include "worker/worker_process.hpp"

namespace miniray {

class Worker::State {
 public:
  State(std::string worker_name, const WorkerOptions& options, Fd socket, std::unique_ptr<WorkerProcess> process);

  /// A call on the channel whose end of stream is explained.
  template <class Call>
  auto talk(Call call);
  /// Throws if the work function is known to have ended: what is sent would be taken by nobody. A socket need not say
  /// so, as a server goes on reading for a worker that has ended.
  void require_listener();
  /// Throws if the message is the work function's end.
  Message deliver(Message message);
  int wait(std::optional<double> timeout_s);
  void kill(int signal);
  std::string stack();
  void end();
  void close(double grace_s, Closing how = Closing::finish);

  // The steps of closing, for close_all.
  /// Whether the process has ended, and all that it said was read. With `cut`, a worker that goes on sending messages
  /// is cut off: it has not noticed the end, and its next send tells it.
  bool has_closed(bool cut);
  /// What to wait for until has_closed() may have become true.
  void watch(std::vector<pollfd>& descriptors);
  void interrupt();
  /// The last step: reports a failure that nobody received, and gives back what is left.
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
  void listen_while_closing(bool cut);
  [[nodiscard]] bool has_said_its_end() const;
  void report_undelivered();

  std::unique_ptr<WorkerProcess> process_;  // before the channel, which asks it
  Channel channel_;
  std::function<void()> on_interrupt_;
  std::uint64_t generation_;
  bool returned_ = false;
  bool killed_here_ = false;
  bool interrupted_here_ = false;
  std::optional<std::uint64_t> arrived_at_end_;  // messages, when it was told to end
  bool ended_by_itself_ = false;                 // before it was told to
  bool told_ = false;                            // the user has heard how it ended
  std::optional<WorkerError> error_;
};

}  // namespace miniray
