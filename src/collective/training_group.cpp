#include "miniray/training_group.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "base/clock.hpp"
#include "base/error_text.hpp"
#include "base/system.hpp"
#include "cluster/gather.hpp"
#include "collective/meeting_point.hpp"
#include "launch/progress.hpp"

namespace miniray {
namespace {

constexpr double last_words_s = limits::exit_wait_ms / 1000.0;  // the wait for the last messages of a dead rank

std::vector<Worker*> pointers_to(std::span<Worker> workers) {
  std::vector<Worker*> pointers;
  for (Worker& worker : workers) pointers.push_back(&worker);
  return pointers;
}

// Orders failures: the one with the lowest number is most likely the cause of the others. A rank that failed because a
// peer had died has an error text like those in `consequences`.
int distance_from_cause(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const WorkerDied& died) {
    return died.certificate().signal == SIGABRT ? 1 : 0;  // NCCL's watchdog aborts a rank when another one has died
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    constexpr std::array consequences{"Connection closed by peer", "Connection reset by peer", "Broken pipe",
                                      "Connection refused",        "ncclRemoteError",          "Socket Timeout",
                                      "DistNetworkError"};
    return std::ranges::any_of(consequences, [&](const char* sign) { return text.find(sign) != text.npos; }) ? 2 : 1;
  }
}

// Returns true if the rank's host or server is gone, and with it all other ranks there.
bool is_host_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const WorkerDied& died) {
    return !died.certificate().lost.empty();
  } catch (const std::exception&) {
    return false;
  }
}

// Returns true if the rank cannot go on, and false if only the call was wrong.
bool ends_the_rank(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const WorkerDied&) {
    return true;
  } catch (const WorkerError&) {
    return true;
  } catch (const EndOfStream&) {
    return true;
  } catch (const ProtocolError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Returns the innermost frames of a stack, down to the call of the work function.
std::string indented(const std::string& stack) {
  std::istringstream lines(stack);
  std::string made;
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line) && count < limits::group_stack_lines_max; ++count) {
    if (line.find("/miniray/_work.py\"") != std::string::npos) break;
    made += "\n    " + line;
  }
  return made;
}

// Waits briefly until one of the workers takes more data. It also reads what they send, because a worker that cannot
// send may not read either.
void wait_for_room(const std::vector<Worker*>& workers) {
  std::vector<pollfd> watched;
  for (Worker* worker : workers) watched.push_back({worker->channel().fileno(), POLLOUT, 0});
  (void)system::poll_many(watched, limits::room_look_ms);
  for (Worker* worker : workers) worker->channel().pump();
}

}  // namespace

TrainingGroup::TrainingGroup(Cluster& cluster, std::span<Worker> workers, const GroupOptions& options)
    : TrainingGroup(cluster, pointers_to(workers), options) {}

TrainingGroup::TrainingGroup(Cluster& cluster, std::vector<Worker*> workers, const GroupOptions& options)
    : cluster_(&cluster), workers_(std::move(workers)), on_interrupt_(options.on_interrupt) {
  if (workers_.empty()) throw UsageError("a training group needs at least one worker, and workers is empty");
  if (options.master_port < 1 || options.master_port > 65535)
    throw UsageError("master_port is a number from 1 to 65535, not " + std::to_string(options.master_port));
  if (std::set<Worker*>(workers_.begin(), workers_.end()).size() != workers_.size())
    throw UsageError("workers has a worker twice, and each can have only one rank");
  std::vector<std::size_t> node_of, nodes;
  for (Worker* worker : workers_) {
    node_of.push_back(cluster.node_of(*worker));
    if (std::ranges::find(nodes, node_of.back()) == nodes.end()) nodes.push_back(node_of.back());
  }
  const MeetingPoint point = find_meeting_point(cluster, nodes, options.master_port);
  std::map<std::size_t, int> local_ranks;
  for (std::size_t rank = 0; rank < workers_.size(); ++rank)
    configs_.push_back({point.master_addr, point.master_port, static_cast<int>(workers_.size()), static_cast<int>(rank),
                        local_ranks[node_of[rank]]++, point.interfaces[node_of[rank]]});
  std::vector<Value> messages(configs_.begin(), configs_.end());
  scatter(messages);
  wait_until_ready(options);
}

void TrainingGroup::wait_until_ready(const GroupOptions& options) {
  const Unsupervised tells_of_deaths(workers_);
  const Deadline deadline = Deadline::in_seconds(options.timeout_s);
  Progress progress(options.progress, "ranks");
  std::set<std::size_t> waiting;
  for (std::size_t rank = 0; rank < size(); ++rank) waiting.insert(rank);
  while (!waiting.empty()) {
    std::vector<Worker*> missing;
    std::vector<std::size_t> ranks(waiting.begin(), waiting.end());
    std::vector<Progress::Entry> shown;
    for (const std::size_t rank : ranks) missing.push_back(workers_[rank]);
    for (std::size_t rank = 0; rank < size(); ++rank)
      shown.push_back({std::to_string(rank), workers_[rank]->name(), !waiting.contains(rank)});
    progress.show(shown);
    const std::vector<std::size_t> ready = wait_any(missing, deadline.poll_ms(limits::group_look_ms) / 1000.0);
    for (const std::size_t at : ready) {
      const std::size_t rank = ranks[at];
      try {
        const Value answer = workers_[rank]->recv();
        const Value* status = answer.kind() == Value::Kind::map ? answer.find("status") : nullptr;
        if (status == nullptr || *status != Value("ready"))
          throw GroupError(workers_[rank]->name() + " sent " + answer.text() + R"( instead of {"status": "ready"})");
        waiting.erase(rank);
      } catch (const Error&) {
        fail(rank, std::current_exception());
      }
    }
    if (ready.empty() && deadline.passed()) {
      ranks.assign(waiting.begin(), waiting.end());
      throw TimeoutError(std::to_string(waiting.size()) + " of " + std::to_string(size()) +
                         " ranks are not ready after " + number_text(options.timeout_s) + " s." +
                         describe_stacks(ranks));
    }
  }
}

std::string TrainingGroup::name_of(std::size_t rank) const {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size());
}

std::string TrainingGroup::describe_stacks(const std::vector<std::size_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += "\n  " + name_of(ranks[i]) + " (" + workers_[ranks[i]]->name() + ")";
    if (i >= limits::group_stacks_max) continue;
    try {
      text += ":" + indented(workers_[ranks[i]]->stack());
    } catch (const Error& error) {
      text += std::string(": ") + error.what();
    }
  }
  return text;
}

// Gives the other ranks a moment to fail too, so that the cause can be told from its consequences. Then it kills them,
// because some would wait for the failed rank forever.
void TrainingGroup::fail(std::size_t failed, const std::exception_ptr& why) {
  const Unsupervised tells_of_deaths(workers_);
  std::map<std::size_t, std::exception_ptr> failures{{failed, why}};
  std::vector<std::size_t> order{failed};
  const Deadline deadline = Deadline::in_ms(is_host_failure(why) ? limits::failing_hosts_ms : limits::failing_ranks_ms);
  while (!deadline.passed() && failures.size() < size()) {
    std::vector<Worker*> others;
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (failures.contains(rank) || workers_[rank]->channel().closed()) continue;
      others.push_back(workers_[rank]);
      ranks.push_back(rank);
    }
    if (others.empty()) break;
    for (const std::size_t at : wait_any(others, deadline.seconds_left())) {
      try {
        (void)workers_[ranks[at]]->receive();  // the group is over, so nobody will ask for this message
      } catch (const Error&) {
        failures[ranks[at]] = std::current_exception();
        order.push_back(ranks[at]);
      }
    }
  }
  for (Worker* worker : workers_)
    if (worker->is_alive()) worker->kill();
  // Of several likely causes, the first in time counts.
  const auto first =
      std::ranges::min_element(order, {}, [&](std::size_t rank) { return distance_from_cause(failures[rank]); });
  std::rotate(order.begin(), first, first + 1);
  const std::size_t cause = order.front();
  std::string text = name_of(cause) + " has failed: " + text_of(failures[cause]);
  std::map<int, std::string> told;
  for (const std::size_t rank : order) told[static_cast<int>(rank)] = text_of(failures[rank]);
  if (order.size() > 1) text += "\nThen these ranks failed too:";
  for (std::size_t i = 1; i < order.size(); ++i)
    text +=
        "\n  " + name_of(order[i]) + ": " + told[static_cast<int>(order[i])].substr(0, limits::group_notice_chars_max);
  text += "\nAll ranks of the group were killed. Start them again from your last checkpoint";
  failure_.emplace(text, static_cast<int>(cause), std::move(told));
  throw GroupError(*failure_);
}

void TrainingGroup::require_alive() const {
  if (workers_.empty()) throw_moved_from("TrainingGroup");
  if (failure_) throw GroupError(*failure_);
}

void TrainingGroup::broadcast(const Value& message) { broadcast(encode(message)); }

void TrainingGroup::broadcast(const Message& message) {
  require_alive();
  fail_if_any_died();
  try {
    cluster_->broadcast(workers_, message);
  } catch (const Error&) {
    fail_if_any_died();
    throw;
  }
}

void TrainingGroup::fail_if_any_died() {
  const Unsupervised tells_of_deaths(workers_);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (workers_[rank]->is_alive()) continue;
    try {
      while (true) (void)workers_[rank]->receive({{}, last_words_s});  // skips its messages; then throws its end
    } catch (const Error&) {
      fail(rank, std::current_exception());
    }
  }
}

void TrainingGroup::scatter(std::span<const Value> messages) {
  std::vector<Message> encoded;
  for (const Value& message : messages) encoded.push_back(encode(message));
  scatter(encoded);
}

// A rank that waits for a dead one does not read its message. So this function never waits for a single rank: it sends
// to all as they take data, and looks for dead ranks meanwhile.
void TrainingGroup::scatter(std::span<const Message> messages) {
  require_alive();
  if (messages.size() != size())
    throw UsageError("scatter takes one message for each of the " + std::to_string(size()) + " ranks, not " +
                     std::to_string(messages.size()));
  const auto attempt = [&](std::size_t rank, const auto& action) {
    try {
      action();
    } catch (const Error&) {
      if (!ends_the_rank(std::current_exception())) throw;
      fail(rank, std::current_exception());
    }
  };
  for (std::size_t rank = 0; rank < size(); ++rank)
    attempt(rank, [&] { (void)workers_[rank]->send_some(messages[rank]); });
  while (true) {
    std::vector<Worker*> unsent;
    for (std::size_t rank = 0; rank < size(); ++rank) {
      attempt(rank, [&] { (void)workers_[rank]->flush_some(); });
      if (workers_[rank]->channel().has_unsent()) unsent.push_back(workers_[rank]);
    }
    if (unsent.empty()) return;
    fail_if_any_died();
    wait_for_room(unsent);
    if (on_interrupt_) on_interrupt_();
  }
}

std::vector<Value> TrainingGroup::gather(const ReceiveOptions& options) {
  std::vector<Value> values;
  for (const Message& message : gather_messages(options)) values.push_back(decode(message));
  return values;
}

std::vector<Message> TrainingGroup::gather_messages(const ReceiveOptions& options) {
  require_alive();
  Gathered gathered = miniray::gather_messages(workers_, options);
  if (gathered.complete()) return take_messages(gathered);
  const std::vector<std::size_t> missing = gathered.missing();
  put_back(workers_, gathered);
  if (!gathered.failed)
    throw TimeoutError(std::to_string(missing.size()) + " of " + std::to_string(size()) +
                       " ranks have sent no message within the time-out." + describe_stacks(missing));
  if (!ends_the_rank(gathered.error)) std::rethrow_exception(gathered.error);
  fail(*gathered.failed, gathered.error);
}

}  // namespace miniray
