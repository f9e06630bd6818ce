#include "tasks/engine.hpp"

#include <signal.h>

#include <algorithm>
#include <set>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/error_text.hpp"
#include "base/grace.hpp"
#include "base/shown_text.hpp"
#include "base/system.hpp"
#include "calls/call_format.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// Returns a certificate for a worker whose process is not known to have died.
DeathCertificate certificate_saying(const Worker& worker, std::string why) {
  DeathCertificate certificate;
  certificate.worker = worker.name();
  certificate.lost = std::move(why);
  return certificate;
}

// The messages are calls that the engine sent. Whoever submitted the task does not know them.
DeathCertificate without_messages(DeathCertificate certificate) {
  certificate.last_messages.clear();
  return certificate;
}

}  // namespace

TaskEngine::TaskEngine(Options options) : options_(std::move(options)), wait_set_(0) {}

void TaskEngine::event(std::string kind, const Member* member, std::string text, std::int64_t task) {
  if (!options_.on_event) return;
  PoolEvent made{std::move(kind), {}, {}, std::move(text), task};
  if (member != nullptr) {
    made.node = nodes_[member->node()].name;
    made.worker = member->worker().name();
  }
  options_.on_event(std::move(made));
}

std::size_t TaskEngine::add_node(std::string name, NodeResources resources, std::vector<std::string> gpu_names) {
  nodes_.push_back({std::move(name), std::move(resources), std::move(gpu_names), 0, {}, false, {}});
  return nodes_.size() - 1;
}

void TaskEngine::add_worker(std::size_t node, std::shared_ptr<Worker> worker, bool shares_clock, bool may_be_silent) {
  MINIRAY_CHECK(node < nodes_.size(), node, nodes_.size());
  Member& member = members_.emplace_back(std::move(worker), node, shares_clock);
  member.may_be_silent = may_be_silent;
  ++nodes_[node].members;
  nodes_[node].expects_fresh_worker = false;
  nodes_[node].broken_for.clear();
  members_changed_ = true;
  event("worker_started", &member, "");
  if (!options_.pickle) refuse_pickles(member);
  prepare(member);
}

void TaskEngine::refuse_pickles(Member& member) {
  try {
    (void)member.worker().send_some(call_message(CallVerb::plain, Value()));
  } catch (const Error&) {  // its end will be noticed
  }
}

void TaskEngine::prepare(Member& member) {
  MINIRAY_CHECK(member.state == Member::State::preparing && member.preparing_call == 0, member.state,
                member.preparing_call);
  if (!options_.initializer) {
    member.state = Member::State::ready;
    return;
  }
  member.preparing_call = options_.initializer->number;
  member.asked_at_ns = now_ns();
  member.preparing_since = static_cast<std::int64_t>(redefined_.size());
  try {
    member.introduce(*options_.initializer);
    (void)member.worker().send_some(options_.initializer->call);
  } catch (const Error&) {  // its end will be noticed
    member.state = Member::State::ending;
  }
}

void TaskEngine::prepared(Member& member, const Message& reply) {
  member.preparing_call = 0;
  if (member.state == Member::State::ending) return;  // it must not become ready again
  const CallReply said = parse_reply(reply);
  if (said.verb == ReplyVerb::unknown) {
    check_missing(member, said);
    Task task = *options_.initializer;
    task.definitions_given = member.preparing_since;
    std::int64_t waits_for = 0;
    if (ask_for_missing(member, task, said, waits_for)) {
      if (waits_for == 0) prepare(member);
      return;  // otherwise defined() prepares it again
    }
  }
  if (said.verb == ReplyVerb::error || said.verb == ReplyVerb::unknown) {
    const std::string what = shown(said.failure.type + ": " + said.failure.message, Colours::escape);
    event("initializer_failed", &member, what);
    member.state = Member::State::ending;
    return break_down("the initializer raised " + what + " in " + member.worker().name() + "\n" +
                      shown(said.failure.traceback, Colours::escape));
  }
  // The answer to a question of the pool's own is plain data, whatever tasks return.
  if (said.verb == ReplyVerb::pickle || said.verb == ReplyVerb::values)
    throw ProtocolError(member.worker().name() + " answered the initializer's call with what is no answer to it");
  member.state = Member::State::ready;
}

void TaskEngine::finish(TaskOutcome&& outcome) {
  MINIRAY_CHECK(outcome.task.number > 0, outcome.kind);
  MINIRAY_CHECK(outcome.certificate.has_value() == (outcome.kind == TaskOutcome::Kind::died), outcome.kind,
                outcome.task.number);
  MINIRAY_CHECK(outcome.kind != TaskOutcome::Kind::reply || outcome.reply.head.number == outcome.task.number,
                outcome.reply.head.number, outcome.task.number);
  outcomes_.push_back(std::move(outcome));
}

void TaskEngine::break_down(const std::string& why) {
  if (!broken_) event("pool_broken", nullptr, why);
  broken_ = why;
  std::vector<Task> ended = queue_.take_all();
  for (auto& [function, tasks] : parked_) std::ranges::move(tasks, std::back_inserter(ended));
  parked_.clear();
  for (Task& task : ended) finish({TaskOutcome::Kind::broken, std::move(task), {}, {}, why, {}});
}

void TaskEngine::break_node(std::size_t node, const std::string& why) {
  MINIRAY_CHECK(node < nodes_.size(), node, nodes_.size());
  if (nodes_[node].members > 0) return;
  nodes_[node].broken_for =
      "no worker is left on " + nodes_[node].name + ", and none takes the place of the last one: " + why;
}

std::string TaskEngine::obstacle_to(const Demand& demand) const {
  std::string reasons;
  for (const Node& node : nodes_) {
    if (!demand.node.empty() && node.name != demand.node) continue;
    const std::string missing = node.resources.missing(demand);
    if (missing.empty()) return "";
    reasons += "\n  " + node.name + " lacks " + missing;
  }
  if (!reasons.empty()) return "no node can ever run a task with " + text_of(demand) + ":" + reasons;
  std::string known;
  for (const Node& node : nodes_) known += (known.empty() ? "" : ", ") + node.name;
  return "there is no node \"" + demand.node + "\" in the pool; it has " + known;
}

void TaskEngine::submit(Task task) {
  MINIRAY_CHECK(task.number > 0 && task.terms, task.number);
  if (broken_) return finish({TaskOutcome::Kind::broken, std::move(task), {}, {}, *broken_, {}});
  watches_times_ = watches_times_ || task.terms->timeout_s.has_value();
  queue_.add(std::move(task));
}

void TaskEngine::submit_again(Task task) { put_back(std::move(task)); }

// If the pool is broken, no worker will take the task.
void TaskEngine::put_back(Task task) {
  if (broken_) return finish({TaskOutcome::Kind::broken, std::move(task), {}, {}, *broken_, {}});
  queue_.put_back(std::move(task));
}

// The task waits until the function is defined.
void TaskEngine::park(Task task, std::int64_t function) {
  MINIRAY_CHECK(function > 0, function, task.number);
  if (broken_) return finish({TaskOutcome::Kind::broken, std::move(task), {}, {}, *broken_, {}});
  parked_[function].push_back(std::move(task));
}

void TaskEngine::cancel(std::int64_t number, bool even_if_it_runs, Closing how) {
  if (std::optional<Task> task = queue_.remove(number))
    return finish({TaskOutcome::Kind::cancelled, std::move(*task), {}, {}, {}, {}});
  for (auto& [function, tasks] : parked_) {
    const auto found = std::ranges::find(tasks, number, &Task::number);
    if (found == tasks.end()) continue;
    finish({TaskOutcome::Kind::cancelled, std::move(*found), {}, {}, {}, {}});
    tasks.erase(found);
    if (tasks.empty()) parked_.erase(function);
    return;
  }
  const auto holder = std::ranges::find_if(members_, [&](const Member& member) { return member.has(number); });
  if (holder == members_.end() || holder->condemned == number) return;
  if (holder->running().number != number) {
    finish({TaskOutcome::Kind::cancelled, holder->take_waiting(number), {}, holder->worker().name(), {}, {}});
    return;
  }
  if (!even_if_it_runs) return;
  holder->condemned = number;
  finish({TaskOutcome::Kind::cancelled, holder->running(), {}, holder->worker().name(), {}, {}});
  end_member(*holder, "a task that ran there was cancelled", how);
}

void TaskEngine::cancel_waiting() {
  dispatch();  // what came before and has a worker free has begun, even if the engine was not polled since
  std::vector<Task> waiting = queue_.take_all();
  for (auto& [function, tasks] : parked_) std::ranges::move(tasks, std::back_inserter(waiting));
  parked_.clear();
  for (Task& task : waiting) finish({TaskOutcome::Kind::cancelled, std::move(task), {}, {}, {}, {}});
}

void TaskEngine::cancel_all() {
  cancel_waiting();
  for (Member& member : members_) {
    give_back_resources(member);
    for (Task& task : member.take_all())
      if (task.number != member.condemned)
        finish({TaskOutcome::Kind::cancelled, std::move(task), {}, member.worker().name(), {}, {}});
    member.state = Member::State::ending;
  }
}

void TaskEngine::fail(const std::string& why) {
  break_down(why);
  for (Member& member : members_) {
    give_back_resources(member);
    for (Task& task : member.take_all())
      if (task.number != member.condemned)
        finish({TaskOutcome::Kind::broken, std::move(task), {}, member.worker().name(), why, {}});
    if (member.state != Member::State::ending) end_member(member, why);
  }
}

std::int64_t TaskEngine::awaited_by(const Task& task) {
  const auto is_awaited = [](const TaskFunction& function) { return function.asked_for && !function.by_value; };
  if (task.function && is_awaited(*task.function)) return task.function->number;
  std::int64_t awaited = 0;
  task.for_each_need([&](const TaskFunction& need) {
    if (awaited == 0 && is_awaited(need)) awaited = need.number;
  });
  return awaited;
}

void TaskEngine::defined(const TaskFunction& function) {
  redefined_.try_emplace(function.number, static_cast<std::int64_t>(redefined_.size()));
  for (Member& member : members_)
    if (member.state == Member::State::preparing && member.preparing_call == 0) prepare(member);
  const auto parked = parked_.find(function.number);
  if (parked == parked_.end()) return;
  for (Task& task : std::exchange(parked->second, {})) put_back(std::move(task));
  parked_.erase(parked);
}

void TaskEngine::end_member(Member& member, const std::string& why, Closing how) {
  member.state = Member::State::ending;
  member.ending_since_ns = now_ns();
  member.kill_at_ns = how == Closing::kill ? 0 : now_ns() + limits::interrupt_grace_ms * 1'000'000LL;
  event("worker_ended", &member, why);
  try {
    if (how == Closing::kill) {
      member.worker().kill(SIGKILL);
    } else {
      member.worker().end();  // the worker ends after the task
      member.worker().kill(SIGINT);
    }
  } catch (const Error&) {  // it has ended already
  }
}

void TaskEngine::give_back_resources(Member& member) {
  if (!member.holds) return;
  MINIRAY_CHECK(member.node() < nodes_.size(), member.node(), nodes_.size());
  nodes_[member.node()].resources.give_back(*member.holds, member.held_gpus);
  member.holds.reset();
  member.held_gpus.clear();
}

bool TaskEngine::receive_from(Members::iterator member) {
  std::optional<DeathCertificate> certificate;
  bool replies_may_be_lost = false;
  try {
    // A worker that sends without end must not keep the others waiting. What it has sent more comes at the next poll.
    for (int taken = 0; taken < limits::replies_per_turn_max; ++taken) {
      std::optional<Message> message = member->worker().try_receive({}, Lane::any);
      if (!message) break;
      if (message->kind == Message::Kind::call)
        throw ProtocolError(member->worker().name() + " made a call, and a pool answers none");
      if (message->kind == Message::Kind::reply) on_reply(*member, std::move(*message));
    }
    return true;
  } catch (const WorkerDied& died) {
    certificate = died.certificate();
    replies_may_be_lost = !certificate->lost.empty();  // its host or its server is gone
  } catch (const WorkerError& error) {                 // its work function raised
    certificate = certificate_saying(member->worker(), error.what());
  } catch (const EndOfStream& end) {  // its work function returned
    certificate = certificate_saying(member->worker(), end.what());
  } catch (const Error& error) {
    certificate = certificate_saying(member->worker(), error.what());
    replies_may_be_lost = true;
  } catch (const std::bad_alloc&) {  // the other workers go on
    certificate = certificate_saying(member->worker(), "sent a reply for which this process has no memory");
    replies_may_be_lost = true;
  }
  remove(member, *certificate, replies_may_be_lost);
  return false;
}

// A worker may send anything. What no worker sends is the end of this one.
void TaskEngine::check_reply(Member& member, const Message& reply, ReplyVerb verb) {
  const auto wrong = [&](const std::string& what) {
    throw ProtocolError(member.worker().name() + " answered the call " + std::to_string(reply.head.number) + what);
  };
  const Task* const task = member.find(reply.head.number);
  if (task == nullptr) {
    if (!member.was_taken_back(reply.head.number) && !member.was_called_before(reply.head.number))
      wrong(", which it was not given");
    return;
  }
  const bool is_map = task->call.head.verb == static_cast<std::uint8_t>(CallVerb::map);
  if (is_map ? verb == ReplyVerb::value || verb == ReplyVerb::pickle : verb == ReplyVerb::values)
    wrong(is_map ? ", which is a map, with one value" : ", which is no map, with the values of a map");
  if (verb == ReplyVerb::dropped && task->call.head.time_ns == 0) wrong(" with \"dropped\", and nobody dropped it");
  if (verb == ReplyVerb::unknown && reply.size() > limits::unknown_reply_bytes_max)
    wrong(" with " + std::to_string(reply.size()) + " bytes about what it does not know; the limit is " +
          std::to_string(limits::unknown_reply_bytes_max));
}

void TaskEngine::check_missing(const Member& member, const CallReply& said) {
  for (const std::int64_t number : said.missing)
    if (!member.was_told(number))
      throw ProtocolError(member.worker().name() + " lacks the definition " + std::to_string(number) +
                          ", which it was never told of");
}

void TaskEngine::on_reply(Member& member, Message reply) {
  const ReplyVerb verb = reply_verb(reply);
  const std::int64_t number = reply.head.number;
  reply.head.time_ns = std::max<std::int64_t>(reply.head.time_ns, 0);  // estimates are made of it
  member.may_be_silent = false;
  if (member.preparing_call != 0 && number == member.preparing_call) return prepared(member, reply);
  if (verb == ReplyVerb::dropped && member.was_taken_back(number)) return;
  if (member.state != Member::State::ending) check_reply(member, reply, verb);
  // A reply to a call that somebody made before the worker came to the pool is not the pool's.
  if (verb == ReplyVerb::pickle && !options_.pickle && member.has(number))
    throw ProtocolError(member.worker().name() + " sent a pickle to a pool that takes none (pickle=False)");
  CallReply said;
  if (verb == ReplyVerb::unknown) {  // these may throw, so they come before the task is taken
    said = parse_reply(reply);
    check_missing(member, said);
  }
  std::optional<Task> task = member.take(number);
  if (member.task_count() == 0) give_back_resources(member);
  if (!task || number == member.condemned) return;  // its outcome was reported already
  if (verb == ReplyVerb::dropped) return put_back(std::move(*task));
  if (std::int64_t waits_for = 0; verb == ReplyVerb::unknown && ask_for_missing(member, *task, said, waits_for)) {
    if (waits_for == 0) return put_back(std::move(*task));
    return park(std::move(*task), waits_for);
  }
  queue_.line_of(task->terms->demand).measured(reply.head.time_ns);
  finish({TaskOutcome::Kind::reply, std::move(*task), std::move(reply), member.worker().name(), {}, {}});
}

bool TaskEngine::ask_for_missing(Member& member, Task& task, const CallReply& reply, std::int64_t& waits_for) {
  std::vector<std::int64_t> missing = reply.missing;
  const bool failed = reply.missing_failed;
  if (missing.empty() && task.function) missing.push_back(task.function->number);
  try {
    for (const std::int64_t number : missing)  // it answers no call while it misses something
      if (member.knows(number)) member.drop(number);
  } catch (const Error&) {  // its end will be noticed
  }
  bool is_its_own = false, may_come = false;
  std::set<std::int64_t> seen;
  const auto look = [&](TaskFunction& definition, const auto& look_further) -> void {
    if (!seen.insert(definition.number).second) return;
    for (const std::weak_ptr<TaskFunction>& weak : definition.needs)
      if (const std::shared_ptr<TaskFunction> need = weak.lock()) look_further(*need, look_further);
    if (std::ranges::find(missing, definition.number) == missing.end()) return;
    is_its_own = true;
    if (definition.by_value) {  // by now; the worker may have been told before, or may lack what its value needs
      const auto redefined = redefined_.find(definition.number);
      const bool told_before = redefined != redefined_.end() && redefined->second >= task.definitions_given;
      may_come = may_come || told_before || (redefined != redefined_.end() && !failed);
      return;
    }
    may_come = true;
    waits_for = definition.number;
    if (!std::exchange(definition.asked_for, true)) options_.on_unknown(definition);
  };
  task.for_each_need([&](TaskFunction& need) { look(need, look); });
  if (task.function) look(*task.function, look);
  return (may_come || !is_its_own) && ++task.times_missing < limits::definition_tries_max;
}

// All replies that the worker sent have been received, so only the first of its tasks can have begun; unless replies
// may be lost.
void TaskEngine::remove(Members::iterator member, const DeathCertificate& certificate, bool replies_may_be_lost) {
  const std::string name = member->worker().name();
  const bool stillborn = member->state == Member::State::preparing;
  event(stillborn ? "worker_stillborn" : "worker_died", &*member, certificate.cause());
  give_back_resources(*member);
  bool first = true;
  for (Task& task : member->take_all()) {
    const bool may_have_begun = std::exchange(first, false) || replies_may_be_lost;
    if (task.number != member->condemned) after_death(std::move(task), may_have_begun, name, certificate);
  }
  std::shared_ptr<Worker> gone = member->take_worker();
  const std::size_t node = member->node();
  MINIRAY_CHECK(gone && nodes_[node].members > 0, node, nodes_[node].members);
  --nodes_[node].members;
  members_.erase(member);
  members_changed_ = true;
  if (options_.on_vacancy) options_.on_vacancy(node, std::move(gone));
}

void TaskEngine::after_death(Task task, bool may_have_begun, const std::string& worker,
                             const DeathCertificate& certificate) {
  if (may_have_begun && ++task.tries > task.terms->retries)
    return finish({TaskOutcome::Kind::died, std::move(task), {}, worker, {}, without_messages(certificate)});
  if (may_have_begun && options_.on_event)
    options_.on_event({"task_retried", {}, worker, certificate.cause(), task.number});
  put_back(std::move(task));
}

// Time.

// Before anything is done about a member, its replies are received: the thread of a C++ pool may have been busy
// elsewhere for long, and the reply may be there already.
void TaskEngine::check_times() {
  for (auto next = members_.begin(); next != members_.end();) {
    const auto member = next++;
    const std::int64_t now = now_ns();
    if (member->state == Member::State::ending) {
      if (member->kill_at_ns != 0 && now > member->kill_at_ns) end_member(*member, "it did not heed an interrupt");
      if (member->ending_since_ns != 0 &&
          now - member->ending_since_ns > grace_ms(limits::close_grace_ms) * 1'000'000LL && receive_from(member))
        remove(member, certificate_saying(member->worker(), "it was told to end, and nothing was heard of it since"),
               true);
      continue;
    }
    if ((!member->is_late(now) && !member->is_silent(now)) || !receive_from(member)) continue;
    for (Task& task : member->take_overdue(now)) put_back(std::move(task));
    check_silence(*member, now);
    check_running(*member, now);
  }
}

void TaskEngine::check_silence(Member& member, std::int64_t now) {
  if (!member.is_silent(now)) return;
  member.may_be_silent = false;  // it is reported once
  event("worker_silent", &member,
        "it was given a task " + std::to_string(limits::silent_worker_ms / 1000) +
            " s ago, and has not answered any yet. If the task is not that long, its work function does not answer "
            "calls: use Worker() or the work function miniray.serve_calls, or have the function wait in handle.recv(), "
            "which answers them");
}

void TaskEngine::check_running(Member& member, std::int64_t now) {
  if (!member.has_run_out(now) || member.running().number == member.condemned) return;
  const Task& task = member.running();
  std::string stack;
  try {
    stack = member.worker().stack();
  } catch (const Error&) {  // it is gone, or does not say
  }
  member.condemned = task.number;
  event("task_timeout", &member,
        "it ran for " + std::to_string(static_cast<double>(now - member.running_since_ns()) / 1e9) + " s", task.number);
  finish({TaskOutcome::Kind::timed_out, task, {}, member.worker().name(), std::move(stack), {}});
  end_member(member, "a task ran there for longer than its time-out");
}

double TaskEngine::seconds_to_next_check(double at_most) const {
  constexpr double look_again_s = limits::pool_look_ms / 1000.0;
  double wait_s = at_most < 0 ? 1e9 : at_most;
  const std::int64_t now = now_ns();
  for (const Member& member : members_) {
    const bool may_be_silent = member.may_be_silent && member.asked_at_ns != 0;
    if (member.state == Member::State::ending || member.task_count() > 1 || may_be_silent)
      wait_s = std::min(wait_s, look_again_s);
    if (!watches_times_ || member.task_count() == 0 || !member.running().terms->timeout_s) continue;
    const double left_s =
        *member.running().terms->timeout_s - static_cast<double>(now - member.running_since_ns()) / 1e9;
    wait_s = std::clamp(left_s, 0.0, wait_s);
  }
  return wait_s;
}

void TaskEngine::watch(Channel* waker) {
  const bool another_waker = std::exchange(waker_, waker) != waker;
  if (std::exchange(members_changed_, false) || another_waker) {
    channels_.clear();
    by_channel_.clear();
    linked_nodes_.clear();
    for (auto member = members_.begin(); member != members_.end(); ++member) {
      channels_.push_back(&member->worker().channel());
      by_channel_.push_back(member);
    }
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      if (!nodes_[node].link) continue;
      channels_.push_back(nodes_[node].link.get());
      linked_nodes_.push_back(node);
    }
    if (waker != nullptr) channels_.push_back(waker);
  }
  // A position in `ready` is one in these three lists, one after the other.
  MINIRAY_CHECK(channels_.size() == by_channel_.size() + linked_nodes_.size() + (waker != nullptr ? 1 : 0),
                channels_.size(), by_channel_.size(), linked_nodes_.size());
  MINIRAY_CHECK(waker == nullptr || channels_.back() == waker, channels_.size());
  wait_set_.watch(channels_);
}

// While every worker has another task to begin, replies are received together, once in a while: each wake-up for one
// reply would take time from the workers.
void TaskEngine::rest() const {
  if (queue_.size() == 0 || members_.empty()) return;
  double rest_ns = limits::rest_us * 1000.0;
  for (const Member& member : members_) {
    if (member.state != Member::State::ready || member.task_count() < 2) return;
    const auto behind = static_cast<double>(member.task_count() - 1);
    rest_ns = std::min(rest_ns, behind * queue_.mean_ns(*member.holds) / 2);
  }
  if (rest_ns >= limits::rest_min_us * 1000.0) system::sleep_ns(static_cast<std::int64_t>(rest_ns));
}

void TaskEngine::poll(double timeout_s, Channel* waker) {
  dispatch();
  if (!outcomes_.empty()) timeout_s = 0;
  if (timeout_s != 0) rest();
  watch(waker);
  const std::vector<std::size_t> ready = wait_set_.wait(Deadline::in_seconds(seconds_to_next_check(timeout_s)));
  for (const std::size_t position : ready) {
    if (position < by_channel_.size()) {
      receive_from(by_channel_[position]);
    } else if (position - by_channel_.size() < linked_nodes_.size()) {
      // A server sends nothing over a link, so a link becomes readable when the server is gone.
      nodes_[linked_nodes_[position - by_channel_.size()]].link.reset();
      members_changed_ = true;
    } else {
      while (waker->try_receive()) {
      }
    }
  }
  check_times();
  dispatch();
}

std::vector<std::shared_ptr<Worker>> TaskEngine::end_workers() {
  std::vector<std::shared_ptr<Worker>> all;
  for (Member& member : members_) {
    give_back_resources(member);
    --nodes_[member.node()].members;
    all.push_back(member.take_worker());
  }
  members_.clear();
  members_changed_ = true;
  for (const std::shared_ptr<Worker>& worker : all) {
    try {
      worker->end();
    } catch (const std::exception&) {  // of what it has sent; it is closed all the same
    }
  }
  return all;
}

bool TaskEngine::is_running(std::int64_t number) const {
  return std::ranges::any_of(
      members_, [&](const Member& member) { return member.task_count() > 0 && member.running().number == number; });
}

TaskEngine::Census TaskEngine::census() const {
  Census counted;
  counted.waiting = queue_.size();
  for (const auto& [function, tasks] : parked_) counted.waiting += tasks.size();
  for (const Member& member : members_) {
    ++counted.workers;
    counted.idle += member.idle() ? 1 : 0;
    counted.running += member.task_count() > 0 ? 1 : 0;
    counted.waiting += member.task_count() > 1 ? member.task_count() - 1 : 0;
  }
  return counted;
}

std::vector<TaskEngine::WorkerStatus> TaskEngine::workers() const {
  std::vector<WorkerStatus> all;
  for (const Member& member : members_) {
    const char* state = member.state == Member::State::preparing ? "preparing"
                        : member.state == Member::State::ending  ? "ending"
                        : member.task_count() > 0                ? "busy"
                                                                 : "idle";
    all.push_back(
        {member.worker().name(), nodes_[member.node()].name, state, member.worker().pid(), member.task_count()});
  }
  return all;
}

}  // namespace miniray
