#include "tasks/member.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "calls/call_format.hpp"

namespace miniray {

// What a function needs may need the function in turn, so each is visited once. A function stands among its own needs:
// what comes after it is needed only when it runs.
void Member::introduce(const TaskFunction& function, std::set<std::int64_t>& seen) {
  if (!function.needs.empty()) {
    if (!seen.insert(function.number).second) return;
    for (const std::weak_ptr<TaskFunction>& weak : function.needs)
      if (const std::shared_ptr<TaskFunction> need = weak.lock())
        need.get() == &function ? tell(function) : introduce(*need, seen);
  }
  tell(function);
}

void Member::tell(const TaskFunction& function) {
  if (function.definition.body.empty())
    return;  // it could not be described; the task that needs it fails with the reason
  const auto known = known_.find(function.number);
  const bool has_slot = function.slot.empty() || slots_[function.slot] == function.number;
  if (known != known_.end() && known->second == function.revision && has_slot) return;
  (void)worker_->send_some(function.definition);
  last_told_ = std::max(last_told_, function.number);
  known_[function.number] = function.revision;
  if (has_slot) return;
  const std::int64_t before = std::exchange(slots_[function.slot], function.number);
  if (before != 0) drop(before);
}

// A pool may see any number of short-lived functions. A worker drops those that it got first.
void Member::introduce(const Task& task) {
  const bool is_new = task.function && !known_.contains(task.function->number);
  std::set<std::int64_t> seen;
  task.for_each_need([&](const TaskFunction& need) { introduce(need, seen); });
  if (!task.function) return;
  introduce(*task.function, seen);
  // If several values of a global were sent, the task's own has to be the last.
  if (!seen.empty())
    task.for_each_need([&](const TaskFunction& need) {
      if (!need.slot.empty()) tell(need);
    });
  if (!is_new || !known_.contains(task.function->number)) return;
  known_order_.push_back(task.function->number);
  if (known_order_.size() > limits::functions_known_max) drop(known_order_.front());
}

void Member::drop(std::int64_t function) {
  known_.erase(function);
  std::erase(known_order_, function);  // otherwise it would be dropped once more when it is known again
  (void)worker_->send_some(call_message(CallVerb::forget, Value(function)));
}

// Drops the oldest buffers, but keeps enough for the buffers of the task that is being sent.
void Member::make_room(std::uint64_t bytes) {
  while (kept_bytes_ + bytes > limits::kept_bytes_max / 2 && !kept_order_.empty()) {
    const std::uint64_t oldest = kept_order_.front();
    Message forget;
    forget.kind = Message::Kind::forget;
    forget.head.number = static_cast<std::int64_t>(oldest);
    (void)worker_->send_some(forget);
    const auto found = kept_.find(oldest);
    MINIRAY_CHECK(found != kept_.end() && kept_bytes_ >= found->second, oldest, kept_bytes_);
    kept_bytes_ -= found->second;
    kept_.erase(found);
    kept_order_.pop_front();
  }
}

void Member::send_keep(const LargeBuffer& large, std::uint64_t supplied_as) {
  MINIRAY_CHECK(!keeps(large.number), large.number);
  make_room(large.buffer.size);
  Message keep;
  keep.kind = Message::Kind::keep;
  keep.head.number = static_cast<std::int64_t>(large.number);
  keep.buffers.push_back(large.buffer);
  if (supplied_as != 0) keep.places.push_back(BufferPlace::supplied(supplied_as));
  (void)worker_->send_some(keep);
  kept_[large.number] = large.buffer.size;
  kept_order_.push_back(large.number);
  kept_bytes_ += large.buffer.size;
}

void Member::give(Task& task, std::int64_t lease_ns) {
  MINIRAY_CHECK(state == State::ready && holds == task.terms->demand, state, task.number);
  MINIRAY_CHECK(tasks_.size() <= limits::tasks_ahead_max, tasks_.size());
  MINIRAY_CHECK(tasks_.empty() == (lease_ns == 0), tasks_.size(), lease_ns);
  introduce(task);
  for (const std::shared_ptr<const LargeBuffer>& large : task.large)
    if (!keeps(large->number)) send_keep(*large, 0);
  const std::int64_t now = now_ns();
  const bool waits = !tasks_.empty();
  lease_end_ns_ = waits ? now + lease_ns : lease_end_ns_;
  task.call.head.time_ns = waits && shares_clock_ ? lease_end_ns_ : 0;
  (void)worker_->send_some(task.call);
  if (!waits) running_since_ns_ = now;
  if (asked_at_ns == 0) asked_at_ns = now;
  tasks_.push_back(std::move(task));
}

bool Member::has(std::int64_t number) const {
  return std::ranges::any_of(tasks_, [&](const Task& task) { return task.number == number; });
}

const Task* Member::find(std::int64_t number) const {
  const auto found = std::ranges::find(tasks_, number, &Task::number);
  return found == tasks_.end() ? nullptr : &*found;
}

// If it has begun in this very moment, its result is ignored.
Task Member::take_waiting(std::int64_t number) {
  MINIRAY_CHECK(!tasks_.empty() && running().number != number, number);
  try {
    if (state != State::ending) (void)worker_->send_some(drop_message(number));
  } catch (const Error&) {  // its end will be noticed
  }
  taken_back_.insert(number);
  std::optional<Task> task = take(number);
  MINIRAY_CHECK(task, number);
  return std::move(*task);
}

std::optional<Task> Member::take(std::int64_t number) {
  const auto found = std::ranges::find_if(tasks_, [&](const Task& task) { return task.number == number; });
  if (found == tasks_.end()) return std::nullopt;
  Task task = std::move(*found);
  if (found == tasks_.begin()) {
    running_since_ns_ = now_ns();
    holds_up_ = false;
  }
  tasks_.erase(found);
  return task;
}

bool Member::is_overdue(std::int64_t now) const {
  const std::int64_t on_its_way_ns = shares_clock_ ? 0 : limits::reply_on_its_way_ms * 1'000'000LL;
  return tasks_.size() > 1 && now > lease_end_ns_ + on_its_way_ns;
}

bool Member::has_run_out(std::int64_t now) const {
  if (tasks_.empty() || !running().terms->timeout_s) return false;
  return static_cast<double>(now - running_since_ns_) / 1e9 >= *running().terms->timeout_s;
}

// If one of them had begun, the reply of the task before it would have been sent before the lease ended, and received.
std::vector<Task> Member::take_overdue(std::int64_t now) {
  std::vector<Task> overdue;
  if (!is_overdue(now)) return overdue;
  std::move(tasks_.begin() + 1, tasks_.end(), std::back_inserter(overdue));
  tasks_.resize(1);
  holds_up_ = true;
  for (const Task& task : overdue) {
    taken_back_.insert(task.number);
    if (shares_clock_) continue;
    try {
      (void)worker_->send_some(drop_message(task.number));
    } catch (const Error&) {  // its end will be noticed
    }
  }
  return overdue;
}

bool Member::was_taken_back(std::int64_t number) {
  const auto found = taken_back_.find(number);
  if (found == taken_back_.end()) return false;
  taken_back_.erase(found);
  return true;
}

std::deque<Task> Member::take_all() {
  holds_up_ = false;
  return std::exchange(tasks_, {});
}

void Member::check_invariants() const {
  // States: one that prepares has no task yet, and only one that ends was told to.
  MINIRAY_CHECK(worker_ != nullptr, node_);
  MINIRAY_CHECK(state != State::preparing || tasks_.empty(), tasks_.size());
  MINIRAY_CHECK(state != State::ready || preparing_call == 0, preparing_call);
  MINIRAY_CHECK(state == State::ending || (condemned == 0 && ending_since_ns == 0 && kill_at_ns == 0), state, condemned,
                ending_since_ns, kill_at_ns);

  // Tasks: it holds resources while it has some, and all ask for the same.
  MINIRAY_CHECK(holds.has_value() == !tasks_.empty(), holds.has_value(), tasks_.size());
  MINIRAY_CHECK(holds.has_value() || held_gpus.empty(), held_gpus.size());
  MINIRAY_CHECK(tasks_.size() <= 1 + limits::tasks_ahead_max, tasks_.size());
  for (const Task& task : tasks_) {
    MINIRAY_CHECK(task.terms && task.terms->demand == *holds, task.number);
    MINIRAY_CHECK(std::ranges::count(tasks_, task.number, &Task::number) == 1, task.number);
  }
  MINIRAY_CHECK(!holds_up_ || !tasks_.empty(), node_);
  MINIRAY_CHECK(tasks_.empty() || running_since_ns_ > 0, running_since_ns_);
  MINIRAY_CHECK(tasks_.size() < 2 || lease_end_ns_ > 0, lease_end_ns_);

  // Functions that it knows, and buffers that it keeps, each in the order in which it got them.
  MINIRAY_CHECK(known_order_.size() <= limits::functions_known_max, known_order_.size());
  MINIRAY_CHECK(std::set(known_order_.begin(), known_order_.end()).size() == known_order_.size(), known_order_.size());
  for (const std::int64_t function : known_order_) MINIRAY_CHECK(known_.contains(function), function);
  MINIRAY_CHECK(kept_order_.size() == kept_.size(), kept_order_.size(), kept_.size());
  std::uint64_t kept_bytes = 0;
  for (const std::uint64_t number : kept_order_) {
    MINIRAY_CHECK(kept_.contains(number), number);
    kept_bytes += kept_.at(number);
  }
  MINIRAY_CHECK(kept_bytes == kept_bytes_ && kept_bytes <= limits::kept_bytes_max, kept_bytes, kept_bytes_);
}

}  // namespace miniray
