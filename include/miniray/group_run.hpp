// A training run that survives the death of its ranks:
//
//   miniray::run_group(cluster, "train", [&](miniray::TrainingGroup& group, int attempt) {
//     int step = load_last_checkpoint(group);
//     for (; step < 1000; ++step) ...
//   });
//
// When a rank dies, all ranks are killed, new ones start with a new rendezvous, and the function is called again. The
// function has to load its last checkpoint itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "miniray/event_log.hpp"
#include "miniray/export.hpp"
#include "miniray/restart_policy.hpp"
#include "miniray/training_group.hpp"

namespace MINIRAY_API miniray {

struct GroupRunOptions {
  /// With other_nodes, the ranks of a lost node are started on the other nodes, so that their number stays the same.
  /// Each restart tries the lost node first.
  RestartPolicy policy = {};
  StartOptions start = {};
  GroupOptions group = {};
  std::shared_ptr<EventLog> events = {};
};

/// Starts the ranks and calls `drive` with their group; `attempt` counts from 0. If `drive` or a later start of the
/// group throws GroupError, WorkerDied, WorkerError or ClusterError, the group is restarted. When the policy refuses,
/// the last of these errors is thrown, with the reason at the end of its text. Any other exception of `drive`, and a
/// failure of the first start, is thrown at once. When this function ends, so do the ranks.
void run_group(Cluster& cluster, const std::string& work_fn,
               const std::function<void(TrainingGroup& group, int attempt)>& drive,
               const GroupRunOptions& options = {});

/// One rung lower: the steps of an attempt, which counts from 0.
struct GroupSteps {
  std::function<std::size_t(int attempt)> begin;  ///< starts the ranks and makes their group; returns their number
  std::function<void(int attempt)> drive;
  std::function<void(Closing how)> end;  ///< ends the ranks that begin() has started, if there are any
};

/// The loop of run_group(). It adds each step to the log. With `progress`, a restart is reported on standard error.
/// `on_interrupt` does what it does in ChannelOptions.
void run_attempts(const GroupSteps& steps, const RestartPolicy& policy, EventLog& events, bool progress,
                  const std::function<void()>& on_interrupt);

/// One rung lower: starts workers as Cluster::connect_to_servers() does, but launches servers that are gone first. If a
/// server cannot be launched and `other_nodes` is true, its workers are started on the other nodes in turn. The workers
/// are returned in the order of their nodes.
[[nodiscard]] std::vector<Worker> connect_again(Cluster& cluster, const std::string& work_fn,
                                                const StartOptions& options, bool other_nodes, EventLog& events);

}  // namespace miniray
