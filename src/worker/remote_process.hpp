// A worker's process on another machine, seen through a control connection to its server: signals go there, the news
// of its end comes back. The connection is always read at both ends, so that a host that is gone is noticed on it.
#pragma once

#include <optional>
#include <string>

#include "base/fd.hpp"
#include "miniray/channel.hpp"
#include "worker/worker_process.hpp"

namespace miniray {

class RemoteProcess : public WorkerProcess {
 public:
  RemoteProcess(Fd control, pid_t pid, std::string where, int unreachable_ms);

  [[nodiscard]] pid_t pid() const override { return pid_; }
  bool running() override;
  int fileno() override;
  bool is_gone() override { return !running() && !ending_->lost.empty(); }
  bool signal(int number) override;
  [[nodiscard]] bool can_be_killed() const override { return false; }
  std::string stack(const std::function<void()>& on_interrupt) override;
  const DeathCertificate& ending() override;
  [[nodiscard]] int news_within_ms() const override { return unreachable_ms_; }
  void forget() override { control_.close(); }

 private:
  void listen();
  void lose(std::string how);

  pid_t pid_;
  std::string where_;
  int unreachable_ms_;
  bool tunnelled_;
  Channel control_;
  std::optional<DeathCertificate> ending_;
  std::optional<std::string> stack_;  // as it was told last
};

/// How a server tells of a worker's end, and how that is read.
[[nodiscard]] Value write_ending(const DeathCertificate& ending);
[[nodiscard]] DeathCertificate read_ending(const Value& news);

}  // namespace miniray
