#include "miniray/group_run.hpp"

#include "base/clock.hpp"
#include "base/log.hpp"
#include "supervise/pause.hpp"

namespace miniray {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Returns whether the ranks may start again after this error. Any other error is a mistake of the program.
bool is_a_death(const Error& error) {
  return dynamic_cast<const GroupError*>(&error) != nullptr || dynamic_cast<const WorkerDied*>(&error) != nullptr ||
         dynamic_cast<const WorkerError*>(&error) != nullptr || dynamic_cast<const ClusterError*>(&error) != nullptr;
}

Value details_of(const Error& error) {
  const auto* failed = dynamic_cast<const GroupError*>(&error);
  return failed != nullptr && failed->rank() ? Value{{"rank", *failed->rank()}} : Value();
}

}  // namespace

void run_attempts(const GroupSteps& steps, const RestartPolicy& policy, EventLog& events, bool progress,
                  const std::function<void()>& on_interrupt) {
  RestartBudget budget(policy);
  const auto note = [&](const char* kind, const std::string& text, Value details = {}) {
    events.add({.kind = kind, .text = text, .details = std::move(details)});
  };
  bool has_begun = false;  // all ranks of a group were ready at least once
  for (int attempt = 0;; ++attempt) {
    std::optional<double> pause_s;
    try {
      const std::size_t ranks = steps.begin(attempt);
      has_begun = true;
      note(attempt == 0 ? "group_started" : "group_restarted", std::to_string(ranks) + " ranks");
      steps.drive(attempt);
    } catch (Error& error) {
      steps.end(is_a_death(error) ? Closing::kill : Closing::interrupt);
      if (!is_a_death(error) || !has_begun) throw;
      note("group_failed", error.what(), details_of(error));
      pause_s = budget.take(static_cast<double>(now_ns()) / 1e9);
      if (!pause_s) {
        note("restart_refused", budget.refusal());
        error.add_note(budget.refusal());
        throw;
      }
      if (progress)
        log(LogLevel::warning, first_line(error.what()) + " All ranks start again (" + budget.describe() + ")");
    } catch (...) {
      steps.end(Closing::interrupt);
      throw;
    }
    if (!pause_s) {
      steps.end(Closing::finish);
      return note("group_finished", "restarts: " + std::to_string(attempt), {{"restarts", attempt}});
    }
    pause(*pause_s, on_interrupt);
  }
}

void run_group(Cluster& cluster, const std::string& work_fn,
               const std::function<void(TrainingGroup& group, int attempt)>& drive, const GroupRunOptions& options) {
  const std::shared_ptr<EventLog> events = options.events ? options.events : std::make_shared<EventLog>();
  std::vector<Worker> workers;
  std::optional<TrainingGroup> group;
  GroupSteps steps;
  steps.begin = [&](int) {
    workers = connect_again(cluster, work_fn, options.start, options.policy.other_nodes, *events);
    return group.emplace(cluster, workers, options.group).size();
  };
  steps.drive = [&](int attempt) { drive(*group, attempt); };
  steps.end = [&](Closing how) {
    std::vector<Worker*> ranks;
    for (Worker& worker : workers) ranks.push_back(&worker);
    close_all(ranks, how);
    workers.clear();
  };
  if (cluster.servers().empty()) cluster.launch_servers(work_fn);
  run_attempts(steps, options.policy, *events, options.group.progress, options.group.on_interrupt);
}

}  // namespace miniray
