// The inside of a pool: gives tasks to workers, watches both, and says what became of each task. One thread uses it; it
// moves when turn() is called.
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

/// Something that the pool did, or saw, and that a user may want to know.
struct PoolEvent {
  std::string kind, node, worker, text;
  std::int64_t task = 0;
};

class TaskEngine {
 public:
  struct Options {
    /// The first call of every worker, which has to succeed before it gets tasks; and the function that it calls.
    std::optional<Task> initializer = {};
    std::function<void(PoolEvent)> on_event = {};
    /// A worker has gone, and its place on this node is free. Its process has ended, or is lost.
    std::function<void(std::size_t node, std::shared_ptr<Worker> worker)> on_vacancy = {};
    /// A worker does not know a function by its name.
    std::function<void(TaskFunction& function)> on_unknown = {};
  };
  explicit TaskEngine(Options options);

  // What there is to work with.
  std::size_t add_node(std::string name, NodeResources resources, std::vector<std::string> gpu_names = {});
  /// `may_be_silent`: its work function may not answer calls. If it never does, the event "worker_silent" says so.
  void add_worker(std::size_t node, std::shared_ptr<Worker> worker, bool shares_clock, bool may_be_silent = false);
  /// A connection to the node's worker server: large buffers for its workers go there once.
  void set_link(std::size_t node, Channel link);
  /// No worker is left, none will come, and this is why: what waits, and what is submitted later, ends with it.
  void break_down(const std::string& why);
  /// The same for one node, if it has no worker: tasks that could be run nowhere else end with it, until it has one.
  void give_up_node(std::size_t node, const std::string& why);
  [[nodiscard]] bool is_broken() const { return broken_.has_value(); }
  [[nodiscard]] const std::string& node_name(std::size_t node) const { return nodes_[node].name; }
  /// Why it can never be run; empty if it can.
  [[nodiscard]] std::string obstacle_to(const Demand& demand) const;

  // Tasks.
  void submit(Task task);
  /// One that has had an outcome, and shall have another: in its old place.
  void submit_again(Task task);
  /// One that waits is dropped; one that runs ends with its worker, or goes on. Its outcome follows, whatever it is.
  /// The worker is killed; or interrupted first, and killed if that does not end the task soon.
  void cancel(std::int64_t number, bool even_if_it_runs = true, Closing how = Closing::kill);
  void cancel_waiting();
  /// Those that run too. What their workers say of them is not heard any more; end the workers next.
  void cancel_all();
  /// `function`'s definition was replaced: tasks that waited for it go on.
  void defined(const TaskFunction& function);
  [[nodiscard]] std::vector<TaskOutcome> take_outcomes() { return std::exchange(outcomes_, {}); }

  /// Waits until something happens, at most so long (less than 0: for ever), and does all that can be done at once.
  /// What comes from `waker`, if there is one, ends the wait.
  void turn(double timeout_s, Channel* waker = nullptr);
  /// Tells all workers to end; for who then lets go of them.
  [[nodiscard]] std::vector<std::shared_ptr<Worker>> dismiss();

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
    bool expects_fresh_worker = false;  ///< one was ended so that another can see other GPUs
    std::string given_up = {};          ///< why no worker will come; empty if one is there, or may come
  };
  using Members = std::list<Member>;

  void prepare(Member& member);
  /// False if it was lost over that.
  bool hear(Members::iterator member);
  void heard(Member& member, Message reply);
  void prepared(Member& member, const Message& reply);
  /// The worker was told of definitions by their names, and does not have them. True if it can be tried again: at once,
  /// or when their values are there.
  bool ask_for_missing(Member& member, Task& task, const CallReply& reply, std::int64_t& waits_for);
  void release(Member& member);
  void lose(Members::iterator member, const DeathCertificate& certificate, bool replies_may_be_lost);
  void after_death(Task task, bool may_have_begun, const std::string& worker, const DeathCertificate& certificate);
  void put_back(Task task);
  void park(Task task, std::int64_t function);
  /// The number of something that it needs, and whose value a worker has asked for; 0 if it need not wait.
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
  std::map<std::int64_t, std::int64_t> redefined_;    // functions, and how many were before them
  std::vector<TaskOutcome> outcomes_;
  std::optional<std::string> broken_;
  bool watches_times_ = false;  // some task has a time-out
  WaitSet wait_set_;
  std::vector<Channel*> channels_;  // the waker's last, if there is one
  const Channel* waker_ = nullptr;  // of the last turn
  std::vector<Members::iterator> by_channel_;
  std::vector<std::size_t> linked_nodes_;
  bool members_changed_ = true;
  std::uint64_t last_supply_ = 0;
};

}  // namespace miniray
