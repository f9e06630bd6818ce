// Replaces workers that are gone, one at a time on each node, without waiting for any of them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "miniray/event_log.hpp"
#include "miniray/restart_policy.hpp"
#include "tasks/engine.hpp"
#include "tasks/worker_source.hpp"
#include "worker/close_all.hpp"

namespace miniray {

/// The engine's thread uses it.
class Staff {
 public:
  /// Engine, source and log must outlive it. Without a policy, every worker that is gone is replaced.
  Staff(TaskEngine& engine, WorkerSource& source, EventLog& events, const std::optional<RestartPolicy>& policy);

  /// Notes that a worker is gone, and its place is free.
  void on_gone(std::size_t node, std::shared_ptr<Worker> gone);
  /// Notes that a new worker ended before it was ready; or that a task has had an outcome, so that workers do start.
  void stillborn(std::string why);
  void working() { stillborn_ = 0; }
  /// Takes every recruit as far as it can go, and begins the next where one is due.
  void advance();
  [[nodiscard]] bool is_busy() const { return !nodes_.empty() || !dead_workers_.empty() || stillborn_ > 0; }
  /// Has the next advance() look at all recruits, because one may be there.
  void look_now();
  /// Returns how long may pass until the next advance(): at most `at_most`, if that is not below 0.
  [[nodiscard]] double seconds_to_next_look(double at_most) const;
  /// Fills no place from now on. Returns the workers that are gone and not closed yet.
  [[nodiscard]] std::vector<std::shared_ptr<Worker>> take_dead_workers();

 private:
  // The places of one node that are to be filled.
  struct Node {
    std::deque<std::shared_ptr<Worker>> vacancies;  // the workers that had the places
    std::unique_ptr<Recruit> recruit;               // for the first of them
    bool granted = false;                           // the policy allowed the next attempt
    bool unreachable = false;                       // the event "node_lost" was noted
    double pause_s = 0;
    std::int64_t not_before_ns = 0;
    std::int64_t look_ns = 0;  // until the recruit is looked after again
  };
  struct DeadWorker {
    std::shared_ptr<Worker> gone;
    std::unique_ptr<Closer> closer;
  };

  bool may_try(std::size_t position, Node& node);
  void try_to_fill(std::size_t position, Node& node);
  void filled(std::size_t position, Node& node, std::shared_ptr<Worker> worker);
  void failed(std::size_t position, Node& node, const std::string& why);
  void refuse(std::size_t position, const std::string& why);
  static std::shared_ptr<Worker> take_vacancy(Node& node);
  void end_dead(std::shared_ptr<Worker> gone);
  void check_invariants() const;

  TaskEngine& engine_;
  WorkerSource& source_;
  EventLog& events_;
  std::optional<RestartBudget> budget_;
  std::map<std::size_t, Node> nodes_;  // by position, those that have places to fill
  std::vector<DeadWorker> dead_workers_;
  int stillborn_ = 0;  // in a row
  std::string last_stillborn_;
};

}  // namespace miniray
