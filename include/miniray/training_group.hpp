// A TrainingGroup makes workers of a cluster the ranks of one training run. It tells them how to find each other, and
// when one rank dies, it kills the others, which would wait for the dead one forever.
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
#include "miniray/export.hpp"
#include "miniray/nccl.hpp"
#include "miniray/seconds.hpp"

namespace MINIRAY_API miniray {

struct GroupOptions {
  /// The time for all ranks to become ready, imports included. Afterwards the constructor throws TimeoutError, whose
  /// text says which ranks are not ready and what each of them is doing.
  Seconds timeout_s = limits::group_timeout_ms / 1000.0;
  int master_port = limits::master_port;    ///< the first port to try; the group uses the next one that is free
  bool progress = true;                     ///< print to standard error which ranks are not ready yet
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
};

/// Thrown when the group cannot go on: a rank has died or failed, or one node cannot reach another. No rank of the
/// group is left waiting for another.
class GroupError : public Error {
 public:
  explicit GroupError(const std::string& text, std::optional<int> rank = {}, std::map<int, std::string> failures = {})
      : Error(text), rank_(rank), failures_(std::move(failures)) {}
  /// Returns the rank whose failure most likely caused the others; nullopt if no rank is to blame.
  [[nodiscard]] std::optional<int> rank() const { return rank_; }
  /// Returns the error of every rank that failed, including those that failed only because another had.
  [[nodiscard]] const std::map<int, std::string>& failures() const { return failures_; }

 private:
  std::optional<int> rank_;
  std::map<int, std::string> failures_;
};

/// The cluster must outlive the group, and so must the workers, which the group does not own. Only one thread at a time
/// may use a group. A group may be moved; a group that was moved from can be destroyed and assigned to, and
/// broadcast(), scatter() and gather() throw UsageError.
class TrainingGroup {
 public:
  /// Gives the workers, which must belong to the cluster, ranks in their order; sends each its NCCLConfig, and waits
  /// until each has answered {"status": "ready"}. Throws UsageError, TimeoutError or GroupError.
  TrainingGroup(Cluster& cluster, std::vector<Worker*> workers, const GroupOptions& options = {});
  TrainingGroup(Cluster& cluster, std::span<Worker> workers, const GroupOptions& options = {});

  [[nodiscard]] std::size_t size() const { return workers_.size(); }
  [[nodiscard]] std::span<Worker* const> workers() const { return workers_; }
  [[nodiscard]] const std::vector<NCCLConfig>& configs() const { return configs_; }

  // When a rank has died or failed, each of these calls kills the other ranks, and throws a GroupError that says which
  // rank failed and why.

  /// Sends one message to all ranks. A large buffer crosses the network once for each node.
  void broadcast(const Value& message);
  /// Sends messages[rank] to each rank. Throws UsageError unless there is one message for each rank.
  void scatter(std::span<const Value> messages);
  /// Returns the next message of each rank, by rank. After a TimeoutError no message is lost, and the group goes on.
  [[nodiscard]] std::vector<Value> gather(const ReceiveOptions& options = {});

  // The same calls for encoded messages.
  void broadcast(const Message& message);
  void scatter(std::span<const Message> messages);
  [[nodiscard]] std::vector<Message> gather_messages(const ReceiveOptions& options = {});

 private:
  void wait_until_ready(const GroupOptions& options);
  [[nodiscard]] std::string name_of(std::size_t rank) const;
  [[nodiscard]] std::string describe_stacks(const std::vector<std::size_t>& ranks);
  void require_alive() const;
  void fail_if_any_died();
  [[noreturn]] void fail(std::size_t failed, const std::exception_ptr& why);

  Cluster* cluster_;
  std::vector<Worker*> workers_;
  std::vector<NCCLConfig> configs_;
  std::function<void()> on_interrupt_;
  std::optional<GroupError> failure_;  // what ended the group; every later call throws it again
};

}  // namespace miniray
