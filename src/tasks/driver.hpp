// Runs a task engine and replaces workers that are gone: in a thread of its own, or in whichever thread waits for news.
// Any thread may give it tasks and orders. One thread at a time waits for its news and hands them out.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/clock.hpp"
#include "calls/call_format.hpp"
#include "miniray/channel.hpp"
#include "miniray/event_log.hpp"
#include "tasks/engine.hpp"
#include "tasks/staff.hpp"
#include "tasks/tally.hpp"
#include "tasks/worker_source.hpp"
#include "worker/close_all.hpp"

namespace miniray {

/// How urgent an end is. It only grows, also while other threads are closing workers.
using Urgency = std::shared_ptr<std::atomic<Closing>>;
/// Ends the workers together, as urgently as the urgency says or comes to say.
void close_together(const std::vector<std::shared_ptr<Worker>>& workers, const Urgency& urgency);

class TaskDriver {
 public:
  /// What the engine has to tell, until wait_news() returns it.
  struct News {
    std::vector<TaskOutcome> outcomes;
    std::vector<std::shared_ptr<Ticket>> tickets;  ///< places that the program has to fill; each wants an answer
    std::vector<std::int64_t> unknown_functions;   ///< workers ask for their values; redefine() them
    bool noted = false;                            ///< there are new events in the log
    bool nudged = false;
    [[nodiscard]] bool empty() const {
      return outcomes.empty() && tickets.empty() && unknown_functions.empty() && !noted && !nudged;
    }
  };

  /// The log must outlive it.
  explicit TaskDriver(EventLog& events);
  TaskDriver(const TaskDriver&) = delete;
  TaskDriver& operator=(const TaskDriver&) = delete;
  ~TaskDriver() { stop(); }

  // Before start().
  void add_node(PoolNode node);
  /// Starts the engine. `source` replaces workers that are gone: all of them, or as many as the policy allows. Without
  /// `pickle`, workers are told to send no pickles.
  enum class Runs : std::uint8_t { in_a_thread, while_its_user_waits };
  void start(Runs runs, std::unique_ptr<WorkerSource> source, const std::optional<RestartPolicy>& policy,
             std::optional<Task> initializer = {}, bool pickle = true);

  void add_worker(std::size_t node, std::shared_ptr<Worker> worker, bool may_be_silent = false);
  void set_link(std::size_t node, Channel link);
  /// Checks terms of tasks. Throws UsageError if no task can have them here.
  [[nodiscard]] std::shared_ptr<const TaskTerms> terms(TaskTerms terms) const;

  // Tasks.
  /// Returns a number for a task: no other task and no call of this process has it.
  [[nodiscard]] static std::int64_t next_number() { return next_call_number(); }
  /// Returns false if tasks are refused. A chunk of a map belongs to what was begun before: it is refused only at the
  /// end.
  [[nodiscard]] bool submit(Task task);
  /// Submits a task that has failed once more. It takes its old place among those that wait.
  void submit_again(Task task);
  /// Cancels a task, as TaskEngine::cancel does, and waits until the engine has done that: a task that waited does not
  /// begin after this has returned.
  void cancel(std::int64_t number, bool even_if_it_runs, Closing how = Closing::kill);
  void cancel_waiting();
  /// Cancels all tasks, also those that run. No task is taken from now on.
  void cancel_all();
  /// Ends all tasks and all workers, because the program cannot hand out outcomes any more.
  void break_down(const std::string& why);
  void redefine(std::shared_ptr<TaskFunction> function, Message definition, const TaskNeeds& needs);
  /// Changes the needs of all tasks that share them, also of those that wait.
  void change_needs(std::shared_ptr<TaskNeeds> needs, TaskNeeds changed);
  /// Returns why no task will run any more; nothing while tasks may run.
  [[nodiscard]] std::optional<std::string> broken() const;

  // News.
  /// Waits for news. They are empty when the deadline has passed. Returns nothing after stop().
  [[nodiscard]] std::optional<News> wait_news(const Deadline& deadline = Deadline::never());
  /// Makes wait_news() return.
  void nudge();

  // The end.
  /// Refuses tasks that come from now on.
  void refuse_tasks();
  [[nodiscard]] bool refuses_tasks() const;
  /// Returns whether tasks are refused, and the outcomes of all that were taken have been handed out.
  [[nodiscard]] bool is_finished();
  /// Ends the engine and then all workers, and waits for that.
  void stop();
  /// Makes the end of workers more urgent, also of those that are ending.
  void hurry(Closing how);
  [[nodiscard]] const Urgency& urgency() const { return urgency_; }

  /// What became of the tasks whose outcomes were handed out, and what the items of maps take.
  [[nodiscard]] Tally& tally() { return tally_; }

  /// Makes the engine do something soon, and wait_news() return after it. Returns false after stop(): then it is not
  /// done.
  using Command = std::function<void(TaskEngine&)>;
  bool post_and_tell(Command command);

  // Questions.
  /// Asks the engine, waits for its answer and returns it; an empty answer after stop(). A driver without a thread
  /// needs `wait(answered)`, which waits for news until answered() returns true. If it throws, the answer is dropped.
  template <class Question, class Wait>
  auto ask(Question question, Wait wait) {
    using Answer = std::invoke_result_t<Question&, TaskEngine&>;
    const auto told = std::make_shared<std::promise<Answer>>();
    std::future<Answer> answer = told->get_future();
    Command command = [question = std::move(question), told](TaskEngine& engine) mutable {
      try {
        told->set_value(question(engine));
      } catch (...) {  // it concerns whoever asked
        told->set_exception(std::current_exception());
      }
    };
    if (!(has_thread() ? post(std::move(command)) : post_and_tell(std::move(command)))) return Answer{};
    wait([&] { return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    return answer.get();
  }
  // These need the driver's thread.
  [[nodiscard]] bool is_running(std::int64_t number);
  [[nodiscard]] TaskEngine::Census census();
  [[nodiscard]] std::vector<TaskEngine::WorkerStatus> workers();

 private:
  [[nodiscard]] bool has_thread() const { return runs_ == Runs::in_a_thread; }

  void ring();
  bool post(Command command);
  template <class Question>
  auto ask(Question question);
  void note(const PoolEvent& event);
  bool take_orders();
  void replace();
  void run();
  bool step();
  void fail(const std::string& why);
  void run_until_news(const Deadline& deadline);
  void publish();
  void end();

  EventLog& events_;
  Tally tally_;
  std::vector<PoolNode> nodes_;
  std::unique_ptr<WorkerSource> source_;
  std::unique_ptr<TaskEngine> engine_;
  std::unique_ptr<Staff> staff_;
  std::unique_ptr<Channel> waker_, bell_;
  bool failed_ = false;                     // the engine cannot go on; all of its tasks have ended
  Runs runs_ = Runs::while_its_user_waits;  // set by start(); any thread may ask
  std::thread thread_;

  mutable std::mutex broken_mutex_;
  std::optional<std::string> broken_;
  std::atomic<bool> is_broken_ = false;

  mutable std::mutex mutex_;  // guards what goes to the engine, below
  std::vector<Task> incoming_, again_;
  std::vector<Command> commands_;
  std::size_t outstanding_ = 0;  // tasks whose outcomes were not handed out yet
  bool asleep_ = false, rung_ = false, refusing_ = false, ending_ = false, stopping_ = false;

  News fresh_;  // collected by the engine's thread until publish()
  std::vector<std::shared_ptr<Worker>> left_workers_;
  Urgency urgency_ = std::make_shared<std::atomic<Closing>>(Closing::finish);
  std::mutex news_mutex_;
  std::condition_variable news_came_;
  News news_;
  bool ended_ = false;
};

}  // namespace miniray
