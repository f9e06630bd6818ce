// The coordinator's part in making a group. On one machine it sends each rank memory that all share. On several, it
// tells each rank where the others listen, and waits until all are connected.
#include <algorithm>
#include <map>

#include "base/clock.hpp"
#include "base/error_text.hpp"
#include "base/network.hpp"
#include "channel/authentication.hpp"
#include "group/meeting.hpp"
#include "miniray/error.hpp"
#include "miniray/group.hpp"
#include "wire/passed.hpp"

namespace miniray {
namespace {

using Workers = std::span<Worker* const>;

void require_usable(Workers workers, const CollectiveOptions& options) {
  if (workers.empty()) throw UsageError("a group needs at least one worker");
  for (std::size_t rank = 0; rank < workers.size(); ++rank)
    if (std::ranges::count(workers.first(rank), workers[rank]) > 0)
      throw UsageError("cannot make a group: " + workers[rank]->name() + " is in the list twice");
  const bool any_port = options.first_port == 0 && options.last_port == 0;
  if (!any_port && (options.first_port < 1 || options.last_port > 65535 || options.first_port > options.last_port))
    throw UsageError("the ports of a group are a range of numbers from 1 to 65535, not " +
                     std::to_string(options.first_port) + " to " + std::to_string(options.last_port));
  const double unreachable_ms = options.unreachable_s * 1000.0;
  if (!(unreachable_ms >= limits::unreachable_min_ms && unreachable_ms <= limits::unreachable_max_ms))
    throw UsageError("unreachable_s is a number of seconds, 1 at least, not " + number_text(options.unreachable_s));
}

List members_of(Workers workers) {
  List members;
  for (Worker* worker : workers)
    members.push_back({{"name", worker->name()}, {"pid", static_cast<std::int64_t>(worker->pid())}});
  return members;
}

// Invites every rank, also after it has failed for one: those that were not invited would hear nothing of that failure,
// and wait until their time-out. Throws the first failure.
template <class Invite>
void invite_all(Workers workers, Invite invite) {
  std::exception_ptr failure;
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    try {
      invite(rank);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void create_on_one_machine(Workers workers, const CollectiveOptions& options) {
  const Fd memory = GroupSegment::make(GroupSegment::on_one_machine(workers.size()));
  const List members = members_of(workers);  // a supervised worker may get another process meanwhile
  invite_all(workers, [&](std::size_t rank) {
    auto copy = std::make_shared<PassedDescriptor>(system::duplicate(memory.get()));
    workers[rank]->send({{invitation_key, Value{{"rank", rank},
                                                {"members", Value(members)},
                                                {"timeout_s", static_cast<double>(options.timeout_s)},
                                                {"memory", PassedDescriptor::as_array(std::move(copy))}}}});
  });
}

// Lets the ranks meet. A worker may have sent messages before it joins; they are put back for its user.
class Introduction {
 public:
  Introduction(Workers workers, const CollectiveOptions& options)
      : workers_(workers), options_(options), unsupervised_(workers), states_(workers.size()) {}
  void run();

 private:
  enum class Step : std::uint8_t { not_invited, invited, placed, reported, gone };
  struct State {
    Step step = Step::not_invited;
    Value place;
    std::string failure;
    std::vector<Message> aside;
  };
  void invite();
  void send_map();
  /// Waits until every rank has reached the step, or one has failed.
  void wait_for(Step step, const Deadline& deadline);
  bool read(std::size_t rank);
  void send_verdict(const std::string& text);
  /// After a failure: reads what the ranks still send about this group, so that no later recv() gets it.
  void drain();
  [[nodiscard]] std::string failures() const;
  [[nodiscard]] std::string name_of(std::size_t rank) const {
    return "rank " + std::to_string(rank) + " (" + workers_[rank]->name() + ")";
  }

  Workers workers_;
  const CollectiveOptions& options_;
  Unsupervised unsupervised_;
  std::vector<State> states_;
};

void Introduction::invite() {
  List coordinator;  // the addresses at which the workers' machines see this one
  bool any_sealed = false;
  for (Worker* worker : workers_) {
    const std::string host = network::local_host(worker->fileno());
    if (host.empty() || network::is_loopback(host)) continue;
    coordinator.emplace_back(host);
    any_sealed = any_sealed || worker->channel().sealed();
  }
  const bool trusted = !coordinator.empty() && !any_sealed;
  const Key key = Key::random();
  invite_all(workers_, [&](std::size_t rank) {
    states_[rank].step = Step::gone;
    workers_[rank]->send(
        {{invitation_key, Value{{"rank", rank},
                                {"members", Value(members_of(workers_))},
                                {"timeout_s", static_cast<double>(options_.timeout_s)},
                                {"key", Array::view(key.get())},
                                {"machine", network::machine_id()},
                                {"coordinator", Value(coordinator)},
                                {"encrypt", options_.encrypt.value_or(!trusted)},
                                {"first_port", options_.first_port},
                                {"last_port", options_.last_port},
                                {"unreachable_ms", static_cast<int>(options_.unreachable_s * 1000)}}}});
    states_[rank].step = Step::invited;
  });
}

// Receives one message of a rank, which is there. Returns whether it was about this group.
bool Introduction::read(std::size_t rank) {
  State& state = states_[rank];
  Message message = workers_[rank]->receive();
  if (message.kind == Message::Kind::message && message.body.size() <= limits::request_bytes_max) {
    const Value value = decode(message);
    const bool is_map = value.kind() == Value::Kind::map;
    if (const Value* place = is_map ? value.find(place_key) : nullptr) {
      state.place = *place;
      state.step = Step::placed;
      return true;
    }
    if (const Value* report = is_map ? value.find(report_key) : nullptr) {
      state.failure = report->string();
      state.step = Step::reported;
      return true;
    }
  }
  state.aside.push_back(std::move(message));
  return false;
}

void Introduction::wait_for(Step step, const Deadline& deadline) {
  while (true) {
    std::vector<Worker*> missing;
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      if (!states_[rank].failure.empty()) return;
      if (states_[rank].step >= step) continue;
      missing.push_back(workers_[rank]);
      ranks.push_back(rank);
    }
    if (missing.empty()) return;
    const std::vector<std::size_t> ready = wait_any(missing, deadline.seconds_left());
    for (const std::size_t at : ready) {
      try {
        (void)read(ranks[at]);
      } catch (...) {
        states_[ranks[at]].step = Step::gone;
        throw;
      }
    }
    if (!ready.empty() || !deadline.passed()) continue;
    std::string names;
    for (const std::size_t rank : ranks) names += (names.empty() ? "" : ", ") + name_of(rank);
    throw TimeoutError("cannot make the group: after " + number_text(options_.timeout_s) +
                       " s, these have not joined: " + names + ". Each worker must call Group::join(handle) next");
  }
}

// Ranks of one machine form a node. Nodes have the order of their first ranks.
void Introduction::send_map() {
  std::map<std::string, std::size_t> nodes;
  List places;
  for (const State& state : states_) {
    const std::size_t node = nodes.try_emplace(state.place["machine"].string(), nodes.size()).first->second;
    places.push_back({{"node", node},
                      {"at_home", state.place["at_home"].boolean()},
                      {"hosts", state.place["hosts"]},
                      {"port", state.place["port"].integer()},
                      {"local", state.place["local"].string()}});
  }
  const Value map{{map_key, Value(std::move(places))}};
  for (Worker* worker : workers_) worker->send(map);
}

void Introduction::send_verdict(const std::string& text) {
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    if (states_[rank].step == Step::not_invited || states_[rank].step == Step::gone) continue;
    try {
      workers_[rank]->send({{verdict_key, text}});
    } catch (const Error&) {
      if (text.empty()) throw;
      states_[rank].step = Step::gone;
    }
  }
}

void Introduction::drain() {
  const Deadline deadline = Deadline::in_ms(limits::failing_ranks_ms);
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    State& state = states_[rank];
    try {
      while (state.step == Step::invited || state.step == Step::placed) {
        if (wait_any(std::span(&workers_[rank], 1), deadline.seconds_left()).empty()) break;
        (void)read(rank);
      }
    } catch (const Error&) {
      state.step = Step::gone;
    }
  }
}

std::string Introduction::failures() const {
  std::string text;
  for (std::size_t rank = 0; rank < states_.size(); ++rank)
    if (!states_[rank].failure.empty()) text += "\n  " + name_of(rank) + ": " + states_[rank].failure;
  return text;
}

void Introduction::run() {
  const Deadline deadline = Deadline::in_seconds(options_.timeout_s);
  const auto put_back = [this] {
    for (std::size_t rank = 0; rank < workers_.size(); ++rank)
      for (auto message = states_[rank].aside.rbegin(); message != states_[rank].aside.rend(); ++message)
        workers_[rank]->put_back(std::move(*message));
  };
  try {
    invite();
    wait_for(Step::placed, deadline);
    if (failures().empty()) send_map();
    wait_for(Step::reported, deadline);
    if (const std::string failed = failures(); !failed.empty())
      throw GroupBroken("cannot make the group, because some of its ranks cannot meet:" + failed +
                        "\nEach machine must reach the others at these addresses. Let their firewalls pass the ports "
                        "(CollectiveOptions::first_port and last_port, in Python ports=, choose them), or use workers "
                        "of one machine");
    send_verdict("");
  } catch (const std::exception& error) {
    send_verdict(error.what());
    drain();
    put_back();
    throw;
  } catch (...) {
    send_verdict("the coordinator was interrupted while it made the group");
    drain();
    put_back();
    throw;
  }
  put_back();
}

}  // namespace

void create_group(std::span<Worker* const> workers, const CollectiveOptions& options) {
  require_usable(workers, options);
  if (std::ranges::all_of(workers, [](Worker* worker) { return worker->channel().shares_memory(); }))
    create_on_one_machine(workers, options);
  else
    Introduction(workers, options).run();
}

void create_group(std::span<Worker> workers, const CollectiveOptions& options) {
  std::vector<Worker*> pointers;
  for (Worker& worker : workers) pointers.push_back(&worker);
  create_group(pointers, options);
}

}  // namespace miniray
