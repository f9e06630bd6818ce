// A training run that outlives the death of its ranks:
//
//   miniray::run_group(cluster, "train", [&](miniray::TrainingGroup& group, int attempt) {
//     int step = load_last_checkpoint(group);
//     for (; step < 1000; ++step) ...
//   });
//
// When a rank dies, all ranks end, new ones get a new rendezvous, and the function is called again. Checkpoints are its
// own affair: with the same checkpoint and the same number of ranks, it arrives where it would have.
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
  /// With other_nodes, the ranks of a node that is gone go to the nodes that are left, so that their number is the
  /// same. At each restart the node is tried again first.
  RestartPolicy policy = {};
  StartOptions start = {};
  GroupOptions group = {};
  std::shared_ptr<EventLog> events = {};
};

/// Starts the ranks, and calls `drive` with their group; `attempt` counts from 0. Restarts on GroupError, WorkerDied,
/// WorkerError and ClusterError, from `drive` or while a group comes together again. When the policy allows no more
/// restarts, throws the last of them, with the refusal at the end of its text. Throws at once what else `drive` throws,
/// and what keeps the first group from coming together. The ranks end with it.
void run_group(Cluster& cluster, const std::string& work_fn,
               const std::function<void(TrainingGroup& group, int attempt)>& drive,
               const GroupRunOptions& options = {});

/// One rung lower: the steps of an attempt, which counts from 0.
struct GroupSteps {
  std::function<std::size_t(int attempt)> begin;  ///< starts the ranks, and makes their group; returns their number
  std::function<void(int attempt)> drive;
  std::function<void(Closing how)> end;  ///< ends the ranks that begin() has started, if any
};

/// The loop of run_group(). It notes each step in the log, and says on standard error, if `progress`, that all ranks
/// start again. `on_interrupt` is as in ChannelOptions.
void run_attempts(const GroupSteps& steps, const RestartPolicy& policy, EventLog& events, bool progress,
                  const std::function<void()>& on_interrupt);

/// One rung lower: workers by node, as Cluster::connect_to_servers; but a node whose server is gone is launched again
/// first, and if it cannot be had and `other_nodes` allows it, its workers are on the others, which take turns. They
/// stay in the order of their nodes.
[[nodiscard]] std::vector<Worker> connect_again(Cluster& cluster, const std::string& work_fn,
                                                const StartOptions& options, bool other_nodes, EventLog& events);

}  // namespace miniray
