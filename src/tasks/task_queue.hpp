// Tasks that wait for a worker. Tasks with equal demands wait in one line; of two lines, the one whose first task came
// earlier goes first.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tasks/task.hpp"

namespace miniray {

class TaskLine {
 public:
  explicit TaskLine(Demand asked) : demand(std::move(asked)) {}
  [[nodiscard]] bool empty() const { return tasks_.empty(); }
  [[nodiscard]] const Task& first() const { return tasks_.front(); }
  [[nodiscard]] std::int64_t first_number() const { return tasks_.front().number; }
  [[nodiscard]] Task take_first();
  [[nodiscard]] std::size_t size() const { return tasks_.size(); }

  /// Notes how long a task of this line took.
  void measured(std::int64_t ns);
  /// Returns how many tasks a worker may have besides the one that runs, so that it need not wait for the next.
  [[nodiscard]] std::size_t tasks_ahead() const;

  const Demand demand;

 private:
  friend class TaskQueue;
  std::deque<Task> tasks_;
  double mean_ns_ = 0;  // how long the last few took; 0 if that is not known
};

class TaskQueue {
 public:
  /// Adds a task. Tasks come in the order of their numbers, or nearly: two threads may submit at the same time.
  void add(Task task);
  /// Adds a task that was taken and did not begin: it gets its old place.
  void put_back(Task task);
  /// Removes a task and returns it; returns nothing if it is not here.
  [[nodiscard]] std::optional<Task> remove(std::int64_t number);
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::vector<Task> take_all();
  /// Returns the lines that have tasks, in the order in which their first tasks came.
  [[nodiscard]] const std::vector<TaskLine*>& waiting();
  [[nodiscard]] Task take_first(TaskLine& line);
  [[nodiscard]] TaskLine& line_of(const Demand& demand);
  /// Returns how long such a task takes, by the last few; 0 if that is not known.
  [[nodiscard]] double mean_ns(const Demand& demand) const;
  [[nodiscard]] std::vector<std::int64_t> numbers() const;

  /// Checks that every task is in the line of its demand, in the order of the numbers, and that all are counted.
  void check_invariants() const;

 private:
  std::map<Demand, std::unique_ptr<TaskLine>> lines_;
  std::vector<TaskLine*> waiting_;
  std::size_t size_ = 0;
};

}  // namespace miniray
