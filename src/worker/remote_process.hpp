// A worker's process on another machine. Signals go to its worker server over a control connection, and the server
// reports the end of the process on the same connection. Both sides always read that connection, so its time-outs show
// that a host is gone.
#pragma once

#include <optional>
#include <string>

#include "base/fd.hpp"
#include "miniray/channel.hpp"
#include "worker/worker_process.hpp"

namespace miniray {

/// Counts what arrives on a control connection in one turn. Both ends use it.
class ControlTurn {
 public:
  /// Throws ProtocolError if the other side sends without end: whoever reads it would do nothing else.
  void take(const Message& message);

 private:
  std::uint64_t bytes_ = 0;
};

class RemoteProcess : public WorkerProcess {
 public:
  /// `same_machine` says that nobody forwards the connection to the server, which runs on this machine.
  RemoteProcess(SealedSocket control, pid_t pid, std::string where, int unreachable_ms, bool same_machine);

  [[nodiscard]] pid_t pid() const override { return pid_; }
  bool running() override;
  int fileno() override;
  bool is_gone() override { return !running() && !ending_->lost.empty(); }
  bool signal(int number) override;
  [[nodiscard]] bool can_be_killed() const override { return false; }
  std::string stack(const std::function<void()>& on_interrupt) override;
  const DeathCertificate& ending() override;
  [[nodiscard]] int news_within_ms() const override { return unreachable_ms_; }
  void drop_descriptors() override { control_.close(); }

 private:
  void read_control();
  void take_news(const Value& news);
  void set_lost(std::string how);

  pid_t pid_;
  std::string where_;
  int unreachable_ms_;
  bool same_machine_;
  bool tunnelled_;
  Channel control_;
  std::optional<DeathCertificate> ending_;
  std::optional<std::string> stack_;  // the last one that the server has sent
};

/// Encode and decode a server's report about the end of a worker. read_ending() throws ValueError; input is untrusted.
[[nodiscard]] Value write_ending(const DeathCertificate& ending);
[[nodiscard]] DeathCertificate read_ending(const Value& news);

}  // namespace miniray
