// The inside of a Worker: a channel, the process at its other end, and the story of how it ended.
#pragma once

#include <memory>
#include <optional>
#include <string>

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
  void close(double grace_s);

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
  void report_undelivered();

  std::unique_ptr<WorkerProcess> process_;  // before the channel, which asks it
  Channel channel_;
  std::function<void()> on_interrupt_;
  std::uint64_t generation_;
  bool returned_ = false;
  bool killed_here_ = false;
  bool ended_by_itself_ = false;  // before it was told to
  bool told_ = false;             // the user has heard how it ended
  std::optional<WorkerError> error_;
};

}  // namespace miniray
