#include "miniray/group_run.hpp"

#include <cstdio>

#include "base/clock.hpp"
#include "supervise/pause.hpp"

namespace miniray {
namespace {

void end_together(std::vector<Worker>& workers, Closing how) {
  std::vector<Worker*> all;
  for (Worker& worker : workers) all.push_back(&worker);
  close_all(all, how);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class GroupRun {
 public:
  GroupRun(Cluster& cluster, std::string work_fn, const GroupRunOptions& options)
      : cluster_(cluster),
        work_fn_(std::move(work_fn)),
        options_(options),
        events_(options.events ? options.events : std::make_shared<EventLog>()),
        budget_(options.policy) {}

  void run(const std::function<void(TrainingGroup&, int)>& drive) {
    if (cluster_.servers().empty()) cluster_.launch_servers(work_fn_);
    for (int attempt = 0;; ++attempt) {
      try {
        return run_once(drive, attempt);
      } catch (const GroupError& error) {
        if (!begun_ || !may_go_on(error)) throw;
      } catch (const WorkerDied& error) {
        if (!begun_ || !may_go_on(error)) throw;
      } catch (const WorkerError& error) {
        if (!begun_ || !may_go_on(error)) throw;
      } catch (const ClusterError& error) {
        if (!begun_ || !may_go_on(error)) throw;
      }
    }
  }

 private:
  void run_once(const std::function<void(TrainingGroup&, int)>& drive, int attempt) {
    std::vector<Worker> workers =
        connect_again(cluster_, work_fn_, options_.start, options_.policy.other_nodes, *events_);
    try {
      TrainingGroup group(cluster_, workers, options_.group);
      begun_ = true;
      note(attempt == 0 ? "group_started" : "group_restarted", std::to_string(group.size()) + " ranks");
      drive(group, attempt);
    } catch (...) {
      end_together(workers, Closing::kill);
      throw;
    }
    end_together(workers, Closing::finish);
    note("group_finished", "restarts: " + std::to_string(attempt));
  }

  void note(const char* kind, const std::string& text) { events_->add({.kind = kind, .text = text}); }

  bool may_go_on(const Error& error) {
    note("group_failed", error.what());
    const std::optional<double> pause_s = budget_.take(static_cast<double>(now_ns()) / 1e9);
    if (!pause_s) {
      note("restart_refused", budget_.refusal());
      return false;
    }
    if (options_.group.progress)
      std::fprintf(stderr, "miniray: %s All ranks start again (%s)\n", first_line(error.what()).c_str(),
                   budget_.describe().c_str());
    pause(*pause_s, options_.group.on_interrupt);
    return true;
  }

  Cluster& cluster_;
  std::string work_fn_;
  const GroupRunOptions& options_;
  std::shared_ptr<EventLog> events_;
  RestartBudget budget_;
  bool begun_ = false;  // a group has come together once
};

}  // namespace

void run_group(Cluster& cluster, const std::string& work_fn,
               const std::function<void(TrainingGroup& group, int attempt)>& drive, const GroupRunOptions& options) {
  GroupRun(cluster, work_fn, options).run(drive);
}

}  // namespace miniray
