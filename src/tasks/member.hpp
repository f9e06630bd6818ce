// A worker in a pool: the tasks that it has, the functions that it knows, and since when it is at what.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "miniray/limits.hpp"
#include "miniray/worker.hpp"
#include "tasks/task.hpp"

namespace miniray {

class Member {
 public:
  enum class State : std::uint8_t { preparing, ready, ending };

  Member(std::shared_ptr<Worker> worker, std::size_t node, bool shares_clock)
      : node_(node), shares_clock_(shares_clock), worker_(std::move(worker)) {
    MINIRAY_CHECK(worker_, node);
    worker_->channel().look_for(Lane::any);
  }

  [[nodiscard]] Worker& worker() const { return *worker_; }
  [[nodiscard]] std::shared_ptr<Worker> let_go() { return std::move(worker_); }
  [[nodiscard]] std::size_t node() const { return node_; }
  /// False on another machine: it cannot be told until when a call may begin.
  [[nodiscard]] bool shares_clock() const { return shares_clock_; }

  /// Tells it of the task's function, and of what that needs, where it does not know them yet.
  void introduce(const Task& task);
  /// Has it forget a function. It hears of it again when a task needs it.
  void drop(std::int64_t function);
  /// Sends it, with its function if that is new there, and takes it. Throws what Worker's calls throw, and then has
  /// not taken it.
  void give(Task& task, std::int64_t lease_ns);
  /// Whether it has the buffer; or notes that it has it now, by another way.
  [[nodiscard]] bool keeps(std::uint64_t number) const { return kept_.contains(number); }
  void send_keep(const LargeBuffer& large, std::uint64_t supplied_as);
  /// Takes the task back out; nothing if it has none such.
  [[nodiscard]] std::optional<Task> take(std::int64_t number);
  /// Whether there may be something to do about it: tasks behind that are overdue, or one that ran for too long.
  [[nodiscard]] bool is_late(std::int64_t now_ns) const { return is_overdue(now_ns) || has_run_out(now_ns); }
  [[nodiscard]] bool has_run_out(std::int64_t now_ns) const;
  /// All but the one that runs, if their leases are over: they have not begun, and will not (on another machine, they
  /// may yet). It was heard after `now_ns`.
  [[nodiscard]] std::vector<Task> take_overdue(std::int64_t now_ns);
  [[nodiscard]] std::deque<Task> take_all();
  /// Whether a reply "dropped" is about a task that was taken back, and may be here again by now.
  [[nodiscard]] bool was_taken_back(std::int64_t number);

  [[nodiscard]] bool idle() const { return state == State::ready && tasks_.empty(); }
  [[nodiscard]] std::size_t task_count() const { return tasks_.size(); }
  [[nodiscard]] const Task& running() const {
    MINIRAY_CHECK(!tasks_.empty(), node_);
    return tasks_.front();
  }
  [[nodiscard]] const std::deque<Task>& tasks() const { return tasks_; }
  /// The one that runs has kept others waiting for longer than their lease.
  [[nodiscard]] bool holds_up() const { return holds_up_; }
  [[nodiscard]] std::int64_t running_since_ns() const { return running_since_ns_; }
  [[nodiscard]] bool has(std::int64_t number) const;
  /// What it has, holds, knows and keeps agrees with its state.
  void check_invariants() const;

  /// Whether it was asked something this long ago and has never answered anything, though it may not know how to.
  [[nodiscard]] bool is_silent(std::int64_t now_ns) const {
    return may_be_silent && asked_at_ns != 0 && now_ns - asked_at_ns > limits::silent_worker_ms * 1'000'000LL;
  }

  State state = State::preparing;
  bool may_be_silent = false;          ///< its work function is the program's, and it has not answered a call yet
  std::int64_t asked_at_ns = 0;        ///< when it got the first call; 0 if it has had none
  std::int64_t preparing_call = 0;     ///< whose reply it waits for before it is ready
  std::optional<Demand> holds;         ///< while it has tasks
  std::vector<std::size_t> held_gpus;  ///< of the node
  std::string visible_gpus;            ///< that its process was told of, if any
  std::int64_t ending_since_ns = 0;
  std::int64_t kill_at_ns = 0;       ///< it was interrupted, and has so long; 0 if it was not
  std::int64_t preparing_since = 0;  ///< how many functions had been redefined when it was told to prepare
  std::int64_t condemned = 0;        ///< a task for which it is being ended, and whose outcome is known

 private:
  [[nodiscard]] bool is_overdue(std::int64_t now_ns) const;
  void introduce(const TaskFunction& function, std::set<std::int64_t>& seen);
  void tell(const TaskFunction& function);
  void make_room(std::uint64_t bytes);

  std::size_t node_;
  bool shares_clock_;
  std::shared_ptr<Worker> worker_;
  std::deque<Task> tasks_;  // the first runs, the others wait behind it
  std::int64_t running_since_ns_ = 0;
  std::int64_t lease_end_ns_ = 0;  // of those that wait
  bool holds_up_ = false;
  std::multiset<std::int64_t> taken_back_;
  std::map<std::int64_t, std::int64_t> known_;   // functions and their revisions
  std::deque<std::int64_t> known_order_;         // functions alone: what they need stays
  std::map<std::string, std::int64_t> slots_;    // who has each
  std::map<std::uint64_t, std::uint64_t> kept_;  // large buffers, and their sizes
  std::deque<std::uint64_t> kept_order_;
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace miniray
