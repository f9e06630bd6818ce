// Replaces the process of a worker that has died, as often as the policy allows, and says so to the caller.
#include "base/check.hpp"
#include "base/clock.hpp"
#include "miniray/supervised_worker.hpp"
#include "supervise/pause.hpp"

namespace miniray {
namespace {

SupervisionOptions with_log(SupervisionOptions options) {
  if (!options.events) options.events = std::make_shared<EventLog>();
  return options;
}

// Returns the text and the cause of an end, for the log.
std::pair<std::string, std::string> described(const std::exception_ptr& end) {
  try {
    std::rethrow_exception(end);
  } catch (const WorkerDied& died) {
    return {died.what(), died.certificate().cause()};
  } catch (const std::exception& error) {
    return {error.what(), "WorkerError"};
  }
}

// Kills the process and waits until it is gone, so that it answers no other call.
void kill_surely(Worker& worker) {
  worker.kill();
  try {
    (void)worker.wait(limits::kill_wait_ms / 1000.0);
  } catch (const Error&) {  // its host cannot be reached, which the next call reports
  }
}

}  // namespace

Supervision::Supervision(Replace replace, SupervisionOptions options)
    : replace_(std::move(replace)), options_(with_log(std::move(options))), budget_(options_.policy) {}

void Supervision::begin(Worker& worker, const std::shared_ptr<Supervision>& supervision) {
  worker.set_recovery(supervision);
  supervision->note(worker, "worker_started", worker.name(), {{"pid", worker.pid()}});
}

void Supervision::note(Worker& worker, const char* kind, const std::string& text, Value details) {
  options_.events->add(
      {.kind = kind, .node = options_.node, .worker = worker.name(), .text = text, .details = std::move(details)});
  if (options_.on_event) options_.on_event();
}

void Supervision::on_end(Worker&, std::exception_ptr why) {
  end_ = std::move(why);
  pending_ = true;
  recovered_ = false;
}

std::optional<double> Supervision::pause_before_attempt(Worker& worker) {
  MINIRAY_CHECK(end_ && !recovered_, worker.name());
  const bool first_time = std::exchange(noted_, restarts_) != restarts_;
  if (first_time) {
    failure_.clear();
    const auto [text, cause] = described(end_);
    note(worker, "worker_died", text, {{"cause", cause}});
  }
  if (!due_pause_s_) due_pause_s_ = budget_.take(static_cast<double>(now_ns()) / 1e9);
  if (due_pause_s_) return due_pause_s_;
  const std::string before =
      std::exchange(refusal_, budget_.refusal() + (failure_.empty() ? "" : ". The last time it failed: " + failure_));
  if (first_time || refusal_ != before) note(worker, "restart_refused", refusal_);
  return std::nullopt;
}

bool Supervision::failed(Worker& worker, const Error& error) {
  noted_ = restarts_;  // the end of a process that could not replace the old one is not a death of the worker
  failure_ = error.what();
  note(worker, "restart_failed", failure_);
  return false;
}

bool Supervision::attempt(Worker& worker) {
  MINIRAY_CHECK(end_, worker.name());
  if (recovered_) return true;  // another call has recovered the worker during the pause
  due_pause_s_.reset();
  try {
    worker.adopt(replace_(worker));
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    return failed(worker, error);
  }
  ++restarts_;
  note(worker, "worker_restarted", budget_.describe(), {{"restarts", restarts_}, {"pid", worker.pid()}});
  try {
    Worker* const prepared = &worker;
    const Unsupervised in_on_restart(std::span(&prepared, 1));
    if (options_.on_restart) options_.on_restart(worker);
  } catch (const WorkerDied& error) {
    return failed(worker, error);
  } catch (const WorkerError& error) {
    return failed(worker, error);
  } catch (const AttemptFailed& error) {
    return failed(worker, error);
  } catch (...) {
    kill_surely(worker);  // it lacks its state, so no call may use it
    throw;
  }
  return recovered_ = true;
}

void Supervision::tell(Worker& worker) {
  MINIRAY_CHECK(end_, worker.name());
  pending_ = false;
  try {
    std::rethrow_exception(end_);
  } catch (const WorkerDied& died) {
    if (!recovered_) throw WorkerDied(died.certificate(), refusal_);
    throw WorkerRestarted(died.certificate(),
                          worker.name() + " has taken its place (" + budget_.describe() +
                              "). Messages that the old process did not answer are lost: send them again");
  }
}

void Supervision::recover(Worker& worker) {
  while (!recovered_) {
    const std::optional<double> pause_s = pause_before_attempt(worker);
    if (!pause_s) break;
    pause(*pause_s, options_.on_interrupt);
    (void)attempt(worker);
  }
  Supervision::tell(worker);
}

SupervisedWorker::SupervisedWorker(const Start& start, SupervisionOptions options)
    : SupervisedWorker(start(), [start](Worker&) { return start(); }, std::move(options)) {}

SupervisedWorker::SupervisedWorker(Worker worker, Replace replace, SupervisionOptions options)
    : worker_(std::move(worker)), supervision_(std::make_shared<Supervision>(std::move(replace), std::move(options))) {
  Supervision::begin(worker_, supervision_);
}

bool SupervisedWorker::recover(const Error& why) {
  supervision().on_end(worker_, std::make_exception_ptr(why));
  try {
    supervision().recover(worker_);
  } catch (const Error&) {
    if (supervision().pending()) throw;  // not from tell(): on_restart threw it
  }
  return supervision().recovered();
}

std::vector<SupervisedWorker> supervise(Cluster& cluster, std::vector<Worker> workers,
                                        const SupervisionOptions& options) {
  const SupervisionOptions shared = with_log(options);
  std::vector<SupervisedWorker> made;
  made.reserve(workers.size());
  for (Worker& worker : workers) {
    const std::size_t home = cluster.node_of(worker);
    SupervisionOptions own = shared;
    own.node = cluster.node_names()[home];
    made.emplace_back(
        std::move(worker),
        [&cluster, home, other_nodes = own.policy.other_nodes, events = own.events](Worker& dead) {
          return replace_in_cluster(cluster, dead, home, other_nodes, *events);
        },
        own);
  }
  return made;
}

}  // namespace miniray
