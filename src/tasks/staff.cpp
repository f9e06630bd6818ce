#include "tasks/staff.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr std::int64_t ns_per_ms = 1'000'000;

}  // namespace

Staff::Staff(TaskEngine& engine, WorkerSource& source, EventLog& events, const std::optional<RestartPolicy>& policy)
    : engine_(engine), source_(source), events_(events) {
  if (policy) budget_.emplace(*policy);
}

void Staff::on_gone(std::size_t node, std::shared_ptr<Worker> gone) {
  MINIRAY_CHECK(gone, node);
  nodes_[node].vacancies.push_back(std::move(gone));
}

void Staff::stillborn(std::string why) {
  ++stillborn_;
  last_stillborn_ = std::move(why);
}

void Staff::advance() {
  if (stillborn_ > limits::stillborn_max && !engine_.is_broken())
    engine_.break_down("workers die before they are ready: " + last_stillborn_);
  std::erase_if(dead_workers_, [](const DeadWorker& dead) { return dead.closer->step(); });
  for (auto next = nodes_.begin(); next != nodes_.end();) {
    auto& [position, node] = *next;
    while (!node.vacancies.empty() && now_ns() >= node.not_before_ns && may_try(position, node)) {
      try_to_fill(position, node);
      if (node.recruit) break;  // it is on its way
    }
    next = node.vacancies.empty() ? nodes_.erase(next) : std::next(next);
  }
  check_invariants();
}

// Holds after each advance(). Workers are few compared to their tasks, and this runs only while one is replaced.
void Staff::check_invariants() const {
  for (const auto& [position, node] : nodes_) {
    MINIRAY_CHECK(!node.vacancies.empty(), position);
    MINIRAY_CHECK(std::ranges::none_of(node.vacancies, [](const auto& gone) { return gone == nullptr; }), position);
    MINIRAY_CHECK(node.pause_s >= 0 && node.pause_s <= limits::pool_pause_max_ms / 1000.0, position, node.pause_s);
    MINIRAY_CHECK(!node.recruit || (node.look_ns > 0 && node.look_ns <= limits::recruit_look_max_ms * ns_per_ms),
                  position, node.look_ns);
  }
  for (const DeadWorker& dead : dead_workers_) MINIRAY_CHECK(dead.gone && dead.closer, dead_workers_.size());
  MINIRAY_CHECK(stillborn_ >= 0, stillborn_);
}

void Staff::look_now() {
  for (auto& [position, node] : nodes_)
    if (node.recruit && node.granted) node.not_before_ns = 0;
}

// False if the place is not to be filled, or not yet.
bool Staff::may_try(std::size_t position, Node& node) {
  if (node.recruit && node.granted) return true;
  if (engine_.is_broken()) {
    while (!node.vacancies.empty()) {
      end_dead(take_vacancy(node));
    }
    return false;
  }
  if (node.granted || !budget_) return node.granted = true;
  const std::optional<double> pause_s = budget_->take(static_cast<double>(now_ns()) / 1e9);
  if (!pause_s) {
    node.recruit.reset();
    end_dead(take_vacancy(node));
    refuse(position, budget_->refusal());
    return false;
  }
  node.granted = true;
  node.not_before_ns = std::max(node.not_before_ns, now_ns() + static_cast<std::int64_t>(*pause_s * 1e9));
  return now_ns() >= node.not_before_ns;
}

void Staff::try_to_fill(std::size_t position, Node& node) {
  MINIRAY_CHECK(node.granted && !node.vacancies.empty(), position, node.granted, node.vacancies.size());
  try {
    if (!node.recruit) {
      node.recruit = source_.recruit(position, node.vacancies.front());
      node.look_ns = limits::recruit_look_min_ms * ns_per_ms;
    }
    if (std::shared_ptr<Worker> worker = node.recruit->advance()) return filled(position, node, std::move(worker));
    node.not_before_ns = now_ns() + node.look_ns;
    node.look_ns = std::min(2 * node.look_ns, limits::recruit_look_max_ms * ns_per_ms);
  } catch (const WillNotCome& never) {
    node.recruit.reset();
    end_dead(take_vacancy(node));
    refuse(position, never.what());
  } catch (const std::exception& error) {
    failed(position, node, error.what());
  }
}

void Staff::filled(std::size_t position, Node& node, std::shared_ptr<Worker> worker) {
  MINIRAY_CHECK(worker && node.recruit, position);
  const bool shares_clock = source_.shares_clock(*worker);
  std::shared_ptr<Worker> gone = take_vacancy(node);
  if (worker != gone) end_dead(std::move(gone));
  if (std::optional<Channel> link = node.recruit->new_link()) engine_.set_link(position, std::move(*link));
  engine_.add_worker(position, std::move(worker), shares_clock);
  if (std::exchange(node.unreachable, false)) events_.add({.kind = "node_back", .node = engine_.node_name(position)});
  node.recruit.reset();
  node.granted = false;
  node.pause_s = 0;
  node.not_before_ns = 0;
}

void Staff::failed(std::size_t position, Node& node, const std::string& why) {
  if (!std::exchange(node.unreachable, true))
    events_.add({.kind = "node_lost", .node = engine_.node_name(position), .text = why});
  node.granted = false;
  node.pause_s = std::clamp(2 * node.pause_s, limits::pool_pause_ms / 1000.0, limits::pool_pause_max_ms / 1000.0);
  node.not_before_ns = now_ns() + static_cast<std::int64_t>(node.pause_s * 1e9);
}

// A pool that expects a worker is not broken, and a node that expects one is not given up.
void Staff::refuse(std::size_t position, const std::string& why) {
  events_.add({.kind = "restart_refused", .node = engine_.node_name(position), .text = why});
  nodes_[position].granted = false;
  const bool expected = std::ranges::any_of(nodes_, [](const auto& entry) { return !entry.second.vacancies.empty(); });
  if (engine_.census().workers == 0 && !expected)
    engine_.break_down("no worker is left, and none takes the place of the last one: " + why);
  if (nodes_[position].vacancies.empty()) engine_.break_node(position, why);
}

std::shared_ptr<Worker> Staff::take_vacancy(Node& node) {
  MINIRAY_CHECK(!node.vacancies.empty());
  std::shared_ptr<Worker> gone = std::move(node.vacancies.front());
  node.vacancies.pop_front();
  return gone;
}

// Begins to close a worker that is gone. advance() goes on with it.
void Staff::end_dead(std::shared_ptr<Worker> gone) {
  Worker* const worker = gone.get();
  CloseOptions options;
  options.how = Closing::kill;
  DeadWorker dead{std::move(gone), std::make_unique<Closer>(std::span(&worker, 1), options)};
  if (!dead.closer->step()) dead_workers_.push_back(std::move(dead));
}

double Staff::seconds_to_next_look(double at_most) const {
  double wait_s = at_most;
  const auto within = [&](double seconds) {
    wait_s = wait_s < 0 ? std::max(0.0, seconds) : std::clamp(seconds, 0.0, wait_s);
  };
  if (!dead_workers_.empty()) within(limits::recruit_look_max_ms / 1000.0);
  for (const auto& [position, node] : nodes_)
    if (!node.vacancies.empty()) within(static_cast<double>(node.not_before_ns - now_ns()) / 1e9);
  return wait_s;
}

std::vector<std::shared_ptr<Worker>> Staff::take_dead_workers() {
  std::vector<std::shared_ptr<Worker>> left;
  for (auto& [position, node] : nodes_) std::ranges::move(node.vacancies, std::back_inserter(left));
  nodes_.clear();
  for (DeadWorker& dead : dead_workers_) left.push_back(std::move(dead.gone));
  dead_workers_.clear();
  return left;
}

}  // namespace miniray
