// Gives tasks to workers, watches both, and reports the outcome of each task. One thread uses an engine, and all of its
// work is done in poll().
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calls/call_format.hpp"
#include "channel/wait_set.hpp"
#include "tasks/member.hpp"
#include "tasks/resources.hpp"
#include "tasks/task.hpp"
#include "tasks/task_queue.hpp"

namespace miniray {

/// Something that the pool did or noticed, for its event log.
struct PoolEvent {
  std::string kind, node, worker, text;
  std::int64_t task = 0;
};

class TaskEngine {
 public:
  struct Options {
    /// The first call of every worker. It has to succeed before the worker gets tasks.
    std::optional<Task> initializer = {};
    /// false: workers are told to send no pickles, and one that sends a pickle all the same is lost.
    bool pickle = true;
    std::function<void(PoolEvent)> on_event = {};
    /// Is called when a worker is gone: its process has ended, or cannot be reached. Its place on the node is free.
    std::function<void(std::size_t node, std::shared_ptr<Worker> worker)> on_vacancy = {};
    /// Is called when a worker does not know a function by its name.
    std::function<void(TaskFunction& function)> on_unknown = {};
  };
  explicit TaskEngine(Options options);

  // Nodes and workers.
  std::size_t add_node(std::string name, NodeResources resources, std::vector<std::string> gpu_names = {});
  /// `may_be_silent`: its work function may not answer calls. If it never does, the event "worker_silent" says so.
  void add_worker(std::size_t node, std::shared_ptr<Worker> worker, bool shares_clock, bool may_be_silent = false);
  /// Sets a connection to the node's worker server, over which a large buffer goes to all workers of the node once.
  void set_link(std::size_t node, Channel link);
  /// Ends the tasks that wait, and those that are submitted later: no worker is left, and none will come.
  void break_down(const std::string& why);
  /// Does the same for one node, if it has no worker: tasks that could run nowhere else end, until it has one.
  void break_node(std::size_t node, const std::string& why);
  [[nodiscard]] bool is_broken() const { return broken_.has_value(); }
  [[nodiscard]] const std::string& node_name(std::size_t node) const { return nodes_[node].name; }
  /// Returns why such a task can never run here; an empty text if it can.
  [[nodiscard]] std::string obstacle_to(const Demand& demand) const;

  // Tasks.
  void submit(Task task);
  /// Puts a task that has had an outcome back into its old place. It will have another outcome.
  void submit_again(Task task);
  /// Drops a task that waits. One that runs is ended with its worker if `even_if_it_runs`, and goes on otherwise. The
  /// worker is killed, or interrupted first and killed if that does not end the task soon. The task's outcome follows.
  void cancel(std::int64_t number, bool even_if_it_runs = true, Closing how = Closing::kill);
  void cancel_waiting();
  /// Cancels all tasks, also those that run. Their replies are ignored from now on: end_workers() comes next.
  void cancel_all();
  /// Ends all tasks, also those that run, and all workers, because the engine cannot go on. No task is taken from now
  /// on, and poll() must not be called again.
  void fail(const std::string& why);
  /// Lets tasks go on that waited for the value of this function, which is in its definition now.
  void defined(const TaskFunction& function);
  [[nodiscard]] std::vector<TaskOutcome> take_outcomes() { return std::exchange(outcomes_, {}); }

  /// Waits until something happens, and does all that can be done then. Waits at most `timeout_s`; without a limit if
  /// that is below 0. A message from `waker` ends the wait, too.
  void poll(double timeout_s, Channel* waker = nullptr);
  /// Tells all workers to end, and returns them, for the caller to close.
  [[nodiscard]] std::vector<std::shared_ptr<Worker>> end_workers();

  [[nodiscard]] bool is_running(std::int64_t number) const;
  struct Census {
    std::size_t waiting = 0, running = 0, workers = 0, idle = 0;
  };
  [[nodiscard]] Census census() const;
  struct WorkerStatus {
    std::string name, node, state;
    std::int64_t pid;
    std::size_t tasks;
  };
  [[nodiscard]] std::vector<WorkerStatus> workers() const;
  /// For tests. Walks all that the engine keeps, and aborts if parts of it contradict each other, which is our bug.
  void check_invariants() const;

 private:
  struct Node {
    std::string name;
    NodeResources resources;
    std::vector<std::string> gpu_names;
    std::size_t members = 0;
    std::unique_ptr<Channel> link = {};
    bool expects_fresh_worker = false;  ///< a worker was ended because the next one has to see other GPUs
    std::string broken_for = {};        ///< why no worker will come; empty if one is there, or may come
  };
  using Members = std::list<Member>;

  static void refuse_pickles(Member& member);
  void prepare(Member& member);
  /// Takes all replies of a worker that have arrived. Returns false if the worker is gone, and was removed.
  bool receive_from(Members::iterator member);
  void on_reply(Member& member, Message reply);
  static void check_missing(const Member& member, const CallReply& said);
  static void check_reply(Member& member, const Message& reply, ReplyVerb verb);
  void prepared(Member& member, const Message& reply);
  /// Asks for the values of definitions that a worker does not know by their names. Returns true if the task can be
  /// tried again: at once, or when the value that `waits_for` names is there.
  bool ask_for_missing(Member& member, Task& task, const CallReply& reply, std::int64_t& waits_for);
  void give_back_resources(Member& member);
  void remove(Members::iterator member, const DeathCertificate& certificate, bool replies_may_be_lost);
  void after_death(Task task, bool may_have_begun, const std::string& worker, const DeathCertificate& certificate);
  void put_back(Task task);
  void park(Task task, std::int64_t function);
  /// Returns the number of a definition that the task needs and whose value is on its way; 0 if it need not wait.
  [[nodiscard]] static std::int64_t awaited_by(const Task& task);
  void end_member(Member& member, const std::string& why, Closing how = Closing::kill);
  void finish(TaskOutcome&& outcome);
  void event(std::string kind, const Member* member, std::string text, std::int64_t task = 0);

  void dispatch();
  bool place(TaskLine& line);
  bool place_behind(TaskLine& line);
  void reserve_for(TaskLine& line);
  [[nodiscard]] Member* idle_member(const TaskLine& line);
  bool give(Member& member, Task& task, std::int64_t lease_ns);
  void supply(std::size_t node, const LargeBuffer& large);
  void rest() const;
  void watch(Channel* waker);
  [[nodiscard]] static std::string visible_names(const Node& node, const std::vector<std::size_t>& gpus);
  bool show_gpus(Member& member);
  void check_times();
  void check_running(Member& member, std::int64_t now_ns);
  void check_silence(Member& member, std::int64_t now_ns);
  [[nodiscard]] double seconds_to_next_check(double at_most) const;
  void check_members() const;
  void check_tasks() const;
  void check_watched() const;

  Options options_;
  std::vector<Node> nodes_;
  Members members_;
  TaskQueue queue_;
  std::map<std::int64_t, std::vector<Task>> parked_;  // by the function that they wait for
  std::map<std::int64_t, std::int64_t> redefined_;    // functions, and how many had been redefined before them
  std::vector<TaskOutcome> outcomes_;
  std::optional<std::string> broken_;
  bool watches_times_ = false;  // some task has had a time-out
  WaitSet wait_set_;
  std::vector<Channel*> channels_;  // of the members, of linked nodes, and the waker if there is one
  const Channel* waker_ = nullptr;  // of the last poll
  std::vector<Members::iterator> by_channel_;
  std::vector<std::size_t> linked_nodes_;
  bool members_changed_ = true;
  std::uint64_t last_supply_ = 0;
};

}  // namespace miniray
