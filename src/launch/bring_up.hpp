// Nodes on their way from a command to a server that is ready, all at once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "launch/attendant.hpp"
#include "launch/node_launch.hpp"
#include "launch/progress.hpp"
#include "miniray/launch.hpp"

namespace miniray {

struct BringUpOptions {
  double timeout_s;
  const char* timeout_name;  // what the caller sets to change it
  int unreachable_ms;
  bool progress;
  std::function<void()> on_interrupt;
};

class BringUp {
 public:
  /// The attendant attends these nodes in this order.
  BringUp(std::shared_ptr<Attendant> attendant, std::vector<NodeLaunch> launches, std::vector<std::string> names,
          BringUpOptions options);

  /// Takes each node as far as it can go, without waiting. Returns true once each is ready or has failed.
  [[nodiscard]] bool advance();
  /// Waits until there may be something to do.
  void wait() const;
  /// What failed, when advance() has returned true.
  [[nodiscard]] std::vector<ClusterError::Failure> failures() const;
  [[nodiscard]] const std::shared_ptr<Attendant>& attendant() const { return attendant_; }
  [[nodiscard]] const std::vector<NodeLaunch>& launches() const { return launches_; }

 private:
  void send_heartbeats();

  std::shared_ptr<Attendant> attendant_;
  std::vector<NodeLaunch> launches_;
  std::vector<std::string> names_;
  BringUpOptions options_;
  Deadline deadline_, heartbeat_;
  std::optional<Deadline> failing_until_;
  Progress progress_;
};

}  // namespace miniray
