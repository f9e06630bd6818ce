// Tasks that wait for a worker. Equal demands wait in one line; between lines, whoever came first goes first.
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

  /// What a worker said that a task of this line took.
  void measured(std::int64_t ns);
  /// How many tasks a worker may have besides the one that runs, so that it need not wait for the next.
  [[nodiscard]] std::size_t tasks_ahead() const;

  const Demand demand;

 private:
  friend class TaskQueue;
  std::deque<Task> tasks_;
  double mean_ns_ = 0;  // of the last few; 0: not known
};

class TaskQueue {
 public:
  /// They come in the order of their numbers, or nearly: two threads may have made theirs at the same time.
  void add(Task task);
  /// It was taken, and did not begin: it is the first again.
  void put_back(Task task);
  /// Nothing if it is not here.
  [[nodiscard]] std::optional<Task> remove(std::int64_t number);
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::vector<Task> take_all();
  /// Those that have tasks, whoever came first first.
  [[nodiscard]] const std::vector<TaskLine*>& waiting();
  [[nodiscard]] Task take_first(TaskLine& line);
  [[nodiscard]] TaskLine& line_of(const Demand& demand);
  /// How long such a task takes, by the last few; 0: not known.
  [[nodiscard]] double mean_ns(const Demand& demand) const;
  [[nodiscard]] std::vector<std::int64_t> numbers() const;

  /// Every task is in the line of its demand, in the order of the numbers, and all are counted.
  void check_invariants() const;

 private:
  std::map<Demand, std::unique_ptr<TaskLine>> lines_;
  std::vector<TaskLine*> waiting_;
  std::size_t size_ = 0;
};

}  // namespace miniray
