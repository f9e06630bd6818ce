// A worker in a pool: the tasks that it has, the functions that it knows, and since when it runs what.
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
#include "calls/call_format.hpp"
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
  /// Takes the worker out of a member that is about to be erased.
  [[nodiscard]] std::shared_ptr<Worker> take_worker() { return std::move(worker_); }
  [[nodiscard]] std::size_t node() const { return node_; }
  /// Returns false on another machine: there, a call cannot say until when it may begin.
  [[nodiscard]] bool shares_clock() const { return shares_clock_; }

  /// Sends the worker the task's function, and what that needs, unless it knows them.
  void introduce(const Task& task);
  /// Has the worker drop a function. It gets the function again when a task needs it.
  void drop(std::int64_t function);
  /// Sends the worker a task, with its function if that is new there, and keeps the task. If it throws what the calls
  /// of Worker throw, the task was not taken.
  void give(Task& task, std::int64_t lease_ns);
  /// Returns whether the worker has the buffer.
  [[nodiscard]] bool keeps(std::uint64_t number) const { return kept_.contains(number); }
  /// Sends the worker a buffer to keep; only a note, if its server supplies it under a number that is not 0.
  void send_keep(const LargeBuffer& large, std::uint64_t supplied_as);
  /// Removes a task and returns it; returns nothing if it is not here.
  [[nodiscard]] std::optional<Task> take(std::int64_t number);
  /// Returns whether tasks that wait here are overdue, or the one that runs has run for too long.
  [[nodiscard]] bool is_late(std::int64_t now_ns) const { return is_overdue(now_ns) || has_run_out(now_ns); }
  [[nodiscard]] bool has_run_out(std::int64_t now_ns) const;
  /// Removes all tasks but the one that runs, if their leases are over: they have not begun, and will not. (On another
  /// machine they may yet.) Replies were received after `now_ns`.
  [[nodiscard]] std::vector<Task> take_overdue(std::int64_t now_ns);
  [[nodiscard]] std::deque<Task> take_all();
  /// Returns whether a reply is about a task that was taken back or cancelled while it waited here, and expects no
  /// further one. A task that was taken back may be here again by now.
  [[nodiscard]] bool was_taken_back(std::int64_t number);
  /// Removes a task that waits behind another, tells the worker to drop it, and returns it.
  [[nodiscard]] Task take_waiting(std::int64_t number);
  /// Returns the task that is here under this number; nullptr if there is none.
  [[nodiscard]] const Task* find(std::int64_t number) const;
  /// Returns whether a reply may be to a caller that used the worker before this pool. Each call has one reply.
  [[nodiscard]] bool was_called_before(std::int64_t number) {
    return number > 0 && number < first_number_ && ++late_replies_ < first_number_;
  }
  /// Returns whether the worker was told of the function, now or before.
  [[nodiscard]] bool was_told(std::int64_t function) const { return function > 0 && function <= last_told_; }
  /// Returns whether the worker has the function, as far as is known.
  [[nodiscard]] bool knows(std::int64_t function) const { return known_.contains(function); }

  [[nodiscard]] bool idle() const { return state == State::ready && tasks_.empty(); }
  [[nodiscard]] std::size_t task_count() const { return tasks_.size(); }
  [[nodiscard]] const Task& running() const {
    MINIRAY_CHECK(!tasks_.empty(), node_);
    return tasks_.front();
  }
  [[nodiscard]] const std::deque<Task>& tasks() const { return tasks_; }
  /// Returns whether the task that runs has kept others waiting for longer than their lease.
  [[nodiscard]] bool holds_up() const { return holds_up_; }
  [[nodiscard]] std::int64_t running_since_ns() const { return running_since_ns_; }
  [[nodiscard]] bool has(std::int64_t number) const;
  /// Checks that the tasks, resources, functions and buffers agree with the state.
  void check_invariants() const;

  /// Whether it was asked something this long ago and has never answered anything, though it may not know how to.
  [[nodiscard]] bool is_silent(std::int64_t now_ns) const {
    return may_be_silent && asked_at_ns != 0 && now_ns - asked_at_ns > limits::silent_worker_ms * 1'000'000LL;
  }

  State state = State::preparing;
  bool may_be_silent = false;          ///< its work function is the program's, and it has not answered a call yet
  std::int64_t asked_at_ns = 0;        ///< when it got the first call; 0 if it has had none
  std::int64_t preparing_call = 0;     ///< the call after whose reply it is ready
  std::optional<Demand> holds;         ///< what it has of the node's resources, while it has tasks
  std::vector<std::size_t> held_gpus;  ///< positions among the node's GPUs
  std::string visible_gpus;            ///< the GPUs that its process was shown, if any
  std::int64_t ending_since_ns = 0;
  std::int64_t kill_at_ns = 0;       ///< when it is killed, after an interrupt; 0 if it was not interrupted
  std::int64_t preparing_since = 0;  ///< how many functions had been redefined when it was told to prepare
  std::int64_t condemned = 0;        ///< the task for which it is being ended, whose outcome was reported

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
  std::int64_t lease_end_ns_ = 0;  // until when the tasks that wait may begin
  bool holds_up_ = false;
  std::multiset<std::int64_t> taken_back_;
  const std::int64_t first_number_ = next_call_number();
  std::int64_t late_replies_ = 0;                // to calls of earlier users
  std::int64_t last_told_ = 0;                   // the highest number of a function
  std::map<std::int64_t, std::int64_t> known_;   // functions and their revisions
  std::deque<std::int64_t> known_order_;         // functions, the oldest first; what they need is not dropped
  std::map<std::string, std::int64_t> slots_;    // globals, and the numbers of their values
  std::map<std::uint64_t, std::uint64_t> kept_;  // large buffers, and their sizes
  std::deque<std::uint64_t> kept_order_;
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace miniray
