#include "tasks/task_queue.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "miniray/limits.hpp"

namespace miniray {

Task TaskLine::take_first() {
  MINIRAY_CHECK(!tasks_.empty());
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void TaskLine::measured(std::int64_t ns) {
  constexpr double weight = 0.1;
  const auto measured_ns = static_cast<double>(ns);
  mean_ns_ = mean_ns_ == 0 ? measured_ns : mean_ns_ + weight * (measured_ns - mean_ns_);
}

std::size_t TaskLine::tasks_ahead() const {
  if (mean_ns_ == 0 || mean_ns_ > limits::task_ahead_below_ms * 1e6) return 0;
  const double ahead = std::ceil(limits::work_ahead_ms * 1e6 / std::max(mean_ns_, 1.0));
  return static_cast<std::size_t>(std::min<double>(ahead, limits::tasks_ahead_max));
}

double TaskQueue::mean_ns(const Demand& demand) const {
  const auto line = lines_.find(demand);
  return line == lines_.end() ? 0 : line->second->mean_ns_;
}

TaskLine& TaskQueue::line_of(const Demand& demand) {
  std::unique_ptr<TaskLine>& line = lines_[demand];
  if (!line) line = std::make_unique<TaskLine>(demand);
  return *line;
}

void TaskQueue::add(Task task) {
  MINIRAY_CHECK(task.number > 0 && task.terms, task.number);
  std::deque<Task>& tasks = line_of(task.terms->demand).tasks_;
  auto place = tasks.end();
  while (place != tasks.begin() && std::prev(place)->number > task.number) --place;
  tasks.insert(place, std::move(task));
  ++size_;
}

void TaskQueue::put_back(Task task) {
  MINIRAY_CHECK(task.number > 0 && task.terms, task.number);
  std::deque<Task>& tasks = line_of(task.terms->demand).tasks_;
  const auto place = std::ranges::find_if(tasks, [&](const Task& waiting) { return waiting.number > task.number; });
  tasks.insert(place, std::move(task));
  ++size_;
}

std::optional<Task> TaskQueue::remove(std::int64_t number) {
  for (auto& [demand, line] : lines_) {
    // They are in the order of their numbers.
    const auto found = std::ranges::lower_bound(line->tasks_, number, {}, &Task::number);
    if (found == line->tasks_.end() || found->number != number) continue;
    MINIRAY_CHECK(size_ > 0, number);
    Task task = std::move(*found);
    line->tasks_.erase(found);
    --size_;
    return task;
  }
  return std::nullopt;
}

std::vector<Task> TaskQueue::take_all() {
  std::vector<Task> all;
  for (auto& [demand, line] : lines_) {
    std::ranges::move(line->tasks_, std::back_inserter(all));
    line->tasks_.clear();
  }
  MINIRAY_CHECK(all.size() == size_, all.size(), size_);
  std::ranges::sort(all, {}, &Task::number);
  size_ = 0;
  return all;
}

Task TaskQueue::take_first(TaskLine& line) {
  MINIRAY_CHECK(size_ >= line.size(), size_, line.size());
  --size_;
  return line.take_first();
}

std::vector<std::int64_t> TaskQueue::numbers() const {
  std::vector<std::int64_t> all;
  for (const auto& [demand, line] : lines_)
    for (const Task& task : line->tasks_) all.push_back(task.number);
  return all;
}

void TaskQueue::check_invariants() const {
  std::size_t size = 0;
  for (const auto& [demand, line] : lines_) {
    MINIRAY_CHECK(line && line->demand == demand, text_of(demand));
    std::int64_t last = 0;
    for (const Task& task : line->tasks_) {
      MINIRAY_CHECK(task.number > last, task.number, last);
      MINIRAY_CHECK(task.terms && task.terms->demand == demand, task.number, text_of(demand));
      last = task.number;
    }
    size += line->tasks_.size();
  }
  MINIRAY_CHECK(size == size_, size, size_);
}

const std::vector<TaskLine*>& TaskQueue::waiting() {
  waiting_.clear();
  for (auto& [demand, line] : lines_)
    if (!line->empty()) waiting_.push_back(line.get());
  std::ranges::sort(waiting_, {}, &TaskLine::first_number);
  return waiting_;
}

}  // namespace miniray
