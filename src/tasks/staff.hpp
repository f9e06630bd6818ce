// Fills the places of workers that are gone, one at a time on each node, without waiting for any of them.
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

/// One thread uses it, with the engine.
class Staff {
 public:
  /// All of them must outlive it. Without a policy, a worker is replaced whenever one died.
  Staff(TaskEngine& engine, WorkerSource& source, EventLog& events, const std::optional<RestartPolicy>& policy);

  /// A worker has gone, and its place is free.
  void lost(std::size_t node, std::shared_ptr<Worker> gone);
  /// The worker of a place that was filled got no further than its preparation; or a task has had an outcome.
  void stillborn(std::string why);
  void working() { stillborn_ = 0; }
  /// Takes every recruit as far as it can go, and sends the next where one is due.
  void advance();
  [[nodiscard]] bool is_busy() const { return !nodes_.empty() || !burials_.empty() || stillborn_ > 0; }
  /// A recruit may have arrived: the next advance() looks after all of them.
  void look_now();
  /// How long may pass until the next advance(): at most `at_most`, if that is not below 0.
  [[nodiscard]] double seconds_to_next_look(double at_most) const;
  /// No place is filled from now on. Returns what is left of workers that are gone.
  [[nodiscard]] std::vector<std::shared_ptr<Worker>> dismiss();

 private:
  // The places of one node that are to be filled.
  struct Node {
    std::deque<std::shared_ptr<Worker>> vacancies;  // by who had them
    std::unique_ptr<Recruit> recruit;               // for the first
    bool granted = false;                           // the policy allowed the next attempt
    bool lost = false;                              // it was told that the node cannot be had
    double pause_s = 0;
    std::int64_t not_before_ns = 0;
    std::int64_t look_ns = 0;  // until the recruit is looked after again
  };
  struct Burial {
    std::shared_ptr<Worker> gone;
    std::unique_ptr<Closer> closer;
  };

  bool may_try(std::size_t position, Node& node);
  void try_to_fill(std::size_t position, Node& node);
  void filled(std::size_t position, Node& node, std::shared_ptr<Worker> worker);
  void failed(std::size_t position, Node& node, const std::string& why);
  void refuse(std::size_t position, const std::string& why);
  void bury(std::shared_ptr<Worker> gone);

  TaskEngine& engine_;
  WorkerSource& source_;
  EventLog& events_;
  std::optional<RestartBudget> budget_;
  std::map<std::size_t, Node> nodes_;  // by position, those that have places to fill
  std::vector<Burial> burials_;
  int stillborn_ = 0;  // in a row
  std::string last_stillborn_;
};

}  // namespace miniray
