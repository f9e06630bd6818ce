// A worker in the server that started it: its process, its connection, the news that its coordinator gets of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "miniray/channel.hpp"
#include "miniray/worker_server.hpp"
#include "worker/local_process.hpp"
#include "worker/request.hpp"
#include "worker/supply.hpp"

namespace miniray {

class HostedWorker {
 public:
  struct Connections {
    Fd data;
    Fd control;  // invalid if there is none
  };
  /// Forks, and then takes the connections over. The worker answers the request itself, so that nothing it says comes
  /// before the answer.
  HostedWorker(std::uint64_t number, const Request& request, const WorkFunction& work, Connections& connections,
               const WorkerServerOptions& options, EventLoop& loop, SupplyStore& supplies,
               std::uint64_t descriptor_limit);
  ~HostedWorker();
  HostedWorker(const HostedWorker&) = delete;
  HostedWorker& operator=(const HostedWorker&) = delete;

  [[nodiscard]] pid_t pid() const { return process_->pid(); }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Its process has ended.
  [[nodiscard]] bool ended() const { return ended_; }
  /// And everybody who should know does.
  [[nodiscard]] bool finished() const { return ended_ && !draining_.active() && !control_; }
  /// Time passes: kills who was told to end and did not; true if it waits for such a moment.
  bool tick();
  /// Nobody needs it any more: it sees the end of its stream, and is killed after the grace.
  void dismiss(const std::string& why);
  void kill() { (void)process_->signal(9); }
  /// Reads on, after its output could not be taken.
  void resume_output();

 private:
  /// What the worker writes to one of its standard descriptors, or to both of them.
  struct Printed {
    Fd pipe;  // invalid if it prints where the server does
    const std::function<bool(const std::string& label, std::string_view lines)>* taker = nullptr;
    std::string unfinished_line;
    EventLoop::Watch watch;
  };
  /// Returns the worker's end.
  Fd open_printed(Printed& printed, const std::function<bool(const std::string&, std::string_view)>& taker);
  int run_in_child(const Request& request, const WorkFunction& work, int data, int supply, int output, int errors,
                   std::uint64_t descriptor_limit) const;
  void control_ready();
  void output_ready(Printed& printed);
  bool read_output(Printed& printed);  // false if nothing was there
  void take_last_output(Printed& printed);
  void forget_control();
  void process_ended();
  void drain();

  std::uint64_t number_;
  std::string label_;
  const WorkerServerOptions& options_;
  EventLoop& loop_;
  SupplyStore& supplies_;
  Fd data_, supply_;
  Printed output_, errors_;  // all is in output_ if nobody wants errors by themselves
  std::optional<Channel> control_;
  std::unique_ptr<LocalProcess> process_;
  std::string tail_;  // of both, as they were read
  bool ended_ = false;
  std::string dismissed_why_;
  std::optional<Deadline> kill_at_, drain_until_, tell_stack_at_;
  EventLoop::Watch exit_, hangup_, control_watch_, supply_watch_, draining_;
};

}  // namespace miniray
