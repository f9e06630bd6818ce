#include "miniray/supervised_worker.hpp"

#include "base/clock.hpp"
#include "supervise/pause.hpp"

namespace miniray {
namespace {

SupervisionOptions with_log(SupervisionOptions options) {
  if (!options.events) options.events = std::make_shared<EventLog>();
  return options;
}

}  // namespace

SupervisedWorker::SupervisedWorker(const Start& start, SupervisionOptions options)
    : SupervisedWorker(start(), [start](Worker&) { return start(); }, std::move(options)) {}

SupervisedWorker::SupervisedWorker(Worker worker, Replace replace, SupervisionOptions options)
    : replace_(std::move(replace)),
      options_(with_log(std::move(options))),
      budget_(options_.policy),
      worker_(std::move(worker)) {
  note("worker_started", worker_.name());
}

void SupervisedWorker::note(const char* kind, const std::string& text) {
  options_.events->add({.kind = kind, .node = options_.node, .worker = worker_.name(), .text = text});
}

template <class Call>
auto SupervisedWorker::supervised(const Call& call) {
  try {
    return call(worker_);
  } catch (const WorkerDied& died) {
    if (!recover(died)) throw WorkerDied(died.certificate(), refusal_);
    throw WorkerRestarted(died.certificate(), worker_.name() + " has taken its place (" + budget_.describe() +
                                                  "). What was sent to it and not answered is lost: send it again");
  } catch (const WorkerError& error) {
    (void)recover(error);
    throw;
  }
}

void SupervisedWorker::send(const Value& value) {
  supervised([&](Worker& worker) { worker.send(value); });
}
void SupervisedWorker::send(const Message& message) {
  supervised([&](Worker& worker) { worker.send(message); });
}
Value SupervisedWorker::recv(const ReceiveOptions& options) {
  return supervised([&](Worker& worker) { return worker.recv(options); });
}
Message SupervisedWorker::receive(const ReceiveOptions& options) {
  return supervised([&](Worker& worker) { return worker.receive(options); });
}

// A new process that dies while it is given its state counts as any other.
bool SupervisedWorker::recover(const Error& why) {
  const bool first_time = std::exchange(noted_pid_, worker_.pid()) != worker_.pid();
  if (first_time) note("worker_died", why.what());
  refusal_.clear();
  while (true) {
    const std::optional<double> pause_s = budget_.take(static_cast<double>(now_ns()) / 1e9);
    if (!pause_s) {
      const bool tried = !refusal_.empty();
      refusal_ = budget_.refusal() + (tried ? ". The last time it failed: " + refusal_ : "");
      if (first_time || tried) note("restart_refused", refusal_);
      return false;
    }
    pause(*pause_s, options_.on_interrupt);
    try {
      worker_ = replace_(worker_);
      ++restarts_;
      note("worker_restarted", budget_.describe());
      if (options_.on_restart) options_.on_restart(worker_);
      return true;
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      refusal_ = error.what();
      note("restart_failed", refusal_);
    }
  }
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
