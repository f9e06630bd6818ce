// A worker, as the server that started it sees it: its process, its connections and its output. The server tells the
// coordinator how the worker ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "channel/seal.hpp"
#include "miniray/channel.hpp"
#include "miniray/worker_server.hpp"
#include "worker/local_process.hpp"
#include "worker/request.hpp"
#include "worker/supply.hpp"

namespace miniray {

class HostedWorker {
 public:
  struct Connections {
    SealedSocket data;
    SealedSocket control;                    // invalid if there is none
    std::function<void()> wipe_others = {};  // called in the worker's process: it must not have the keys of others
  };
  /// Forks a process and then takes ownership of the connections. The worker itself answers the request, so that none
  /// of its messages comes before the answer. If the fork fails, the constructor throws, and the caller still owns the
  /// connections.
  HostedWorker(std::uint64_t number, const Request& request, const WorkFunction& work, Connections& connections,
               const WorkerServerOptions& options, EventLoop& loop, SupplyStore& supplies,
               std::uint64_t descriptor_limit);
  ~HostedWorker();
  HostedWorker(const HostedWorker&) = delete;
  HostedWorker& operator=(const HostedWorker&) = delete;

  [[nodiscard]] pid_t pid() const { return process_->pid(); }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Returns whether the process has ended.
  [[nodiscard]] bool ended() const { return ended_; }
  /// Returns whether the process has ended and its last messages are delivered. The object can then be destroyed.
  [[nodiscard]] bool finished() const { return ended_ && !draining_.active() && !control_; }
  /// Does what is due now, such as killing a worker that was told to end and has not. Returns true if something will be
  /// due soon. The server calls it again and again.
  bool tick();
  /// Ends the process: the worker sees the end of its stream, and is killed after the grace. If `why` is not empty, it
  /// becomes the cause in the death certificate.
  void end(const std::string& why);
  void kill() { (void)process_->signal(9); }
  /// Reads the worker's output again, after the callback for output has returned false.
  void resume_output();

 private:
  /// A pipe for what the worker writes to standard output, to standard error, or to both.
  struct OutputPipe {
    Fd pipe;  // invalid if the worker prints where the server does
    const std::function<bool(const std::string& label, std::string_view lines)>* taker = nullptr;
    std::string unfinished_line;
    EventLoop::Watch watch;
  };
  /// Returns the worker's end of the pipe.
  Fd open_output(OutputPipe& output, const std::function<bool(const std::string&, std::string_view)>& taker);
  int run_in_child(const Request& request, const WorkFunction& work, const Connections& connections, int supply,
                   int output, int errors, std::uint64_t descriptor_limit) const;
  void control_ready();
  void output_ready(OutputPipe& output);
  bool read_output(OutputPipe& output);  // returns whether something was there
  void take_last_output(OutputPipe& output);
  void drop_control();
  void process_ended();
  void drain();

  std::uint64_t number_;
  std::string label_;
  const WorkerServerOptions& options_;
  EventLoop& loop_;
  SupplyStore& supplies_;
  Fd data_, supply_;
  OutputPipe output_, errors_;  // output_ has standard error too, unless on_errors is set
  std::optional<Channel> control_;
  std::unique_ptr<LocalProcess> process_;
  std::string tail_;  // the last output of both pipes, in the order in which it was read
  bool ended_ = false;
  std::string end_reason_;
  std::optional<Deadline> kill_at_, drain_until_, send_stack_at_;
  Deadline send_stack_until_ = Deadline::never();  // then it is sent even if it is not finished
  EventLoop::Watch exit_, hangup_, control_watch_, supply_watch_, draining_;
};

}  // namespace miniray
