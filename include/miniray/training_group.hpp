// Workers that train together: each has a rank, all know where to meet, and none is left hanging when one dies.
//
//   auto workers = cluster.start("train");
//   miniray::TrainingGroup group(cluster, workers);   // sends each its NCCLConfig, waits for {"status": "ready"}
//   group.broadcast({{"cmd", "step"}});
//   std::vector<miniray::Value> losses = group.gather();
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "miniray/cluster.hpp"
#include "miniray/error.hpp"
#include "miniray/nccl.hpp"

namespace miniray {

struct GroupOptions {
  /// For all ranks to be ready, what they load included. After that, TimeoutError says which are not, and what each is
  /// doing.
  double timeout_s = limits::group_timeout_ms / 1000.0;
  int master_port = limits::master_port;    ///< the first to try; a group gets one that is free
  bool progress = true;                     ///< say on standard error which ranks are still missing
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
};

/// The group cannot go on: a rank has died or failed, or one node cannot reach another. Nothing of the group is left
/// hanging.
class GroupError : public Error {
 public:
  explicit GroupError(const std::string& text, std::optional<int> rank = {}, std::map<int, std::string> failures = {})
      : Error(text), rank_(rank), failures_(std::move(failures)) {}
  /// Whose failure is the cause, as far as that can be told.
  [[nodiscard]] std::optional<int> rank() const { return rank_; }
  /// What each failed rank said, its consequences in others included.
  [[nodiscard]] const std::map<int, std::string>& failures() const { return failures_; }

 private:
  std::optional<int> rank_;
  std::map<int, std::string> failures_;
};

class TrainingGroup {
 public:
  /// The workers, which are the cluster's, get their ranks in this order.
  TrainingGroup(Cluster& cluster, std::vector<Worker*> workers, const GroupOptions& options = {});
  TrainingGroup(Cluster& cluster, std::span<Worker> workers, const GroupOptions& options = {});

  [[nodiscard]] std::size_t size() const { return workers_.size(); }
  [[nodiscard]] std::span<Worker* const> workers() const { return workers_; }
  [[nodiscard]] const std::vector<NCCLConfig>& configs() const { return configs_; }

  // When a rank dies or fails, each of these ends the other ranks, which would wait for it for ever, and throws
  // GroupError: which rank, and why.
  /// The same message to all; large buffers go to each node once.
  void broadcast(const Value& message);
  /// Each rank its own.
  void scatter(std::span<const Value> messages);
  /// The next message of each, by rank. On TimeoutError nothing is lost, and the group goes on.
  [[nodiscard]] std::vector<Value> gather(const ReceiveOptions& options = {});

  // The same for encoded messages.
  void broadcast(const Message& message);
  void scatter(std::span<const Message> messages);
  [[nodiscard]] std::vector<Message> gather_messages(const ReceiveOptions& options = {});

 private:
  void wait_until_ready(const GroupOptions& options);
  [[nodiscard]] std::string name_of(std::size_t rank) const;
  [[nodiscard]] std::string what_they_do(const std::vector<std::size_t>& ranks);
  void require_alive() const;
  void look_for_dead();
  [[noreturn]] void fail(std::size_t failed, const std::exception_ptr& why);

  Cluster* cluster_;
  std::vector<Worker*> workers_;
  std::vector<NCCLConfig> configs_;
  std::function<void()> on_interrupt_;
  std::optional<GroupError> failure_;  // what ended it, and will be said again
};

}  // namespace miniray
