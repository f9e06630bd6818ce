// The part of miniray.Pool that is in the core: the task engine in a thread of its own, which never waits for Python.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "interop.hpp"
#include "miniray/channel.hpp"
#include "object_walk.hpp"
#include "tasks/engine.hpp"

namespace miniray::python {

struct FunctionHandle {
  std::shared_ptr<TaskFunction> function;
};
struct NeedsHandle {
  std::shared_ptr<TaskNeeds> needs;  // what is in it is the engine's: see PoolCore::change_needs
};
struct TermsHandle {
  std::shared_ptr<const TaskTerms> terms;
};
struct TaskHandle {
  Task task;
};

/// Its calls may come from any thread.
class PoolCore {
 public:
  PoolCore();
  PoolCore(const PoolCore&) = delete;
  PoolCore& operator=(const PoolCore&) = delete;
  ~PoolCore() {
    const nb::gil_scoped_release released;  // the thread may need it to let go of a worker
    stop();
  }

  // Before start().
  std::size_t add_node(const std::string& name, double cpus, std::size_t gpus, std::vector<std::string> gpu_names,
                       const Amounts& custom);
  void start(nb::handle initializer, nb::handle arguments, nb::handle needs, nb::handle pack);

  void add_worker(std::size_t node, nb::handle worker, bool shares_clock);
  void set_link(std::size_t node, nb::handle link);

  // Functions and terms.
  FunctionHandle new_function();
  /// Before the first task that refers to it.
  void describe(const FunctionHandle& handle, nb::handle definition, bool by_value, std::string slot, std::string name);
  /// A worker asked for its value. `needs` are handles of what a worker has to hear of first.
  void redefine(const FunctionHandle& handle, nb::handle definition, nb::list needs);
  static NeedsHandle needs(nb::list handles);
  /// Of all tasks that share them, also of those that wait.
  void change_needs(const NeedsHandle& handle, nb::list handles);
  TermsHandle terms(double cpus, double gpus, const Amounts& custom, const std::string& node,
                    const std::string& strategy, std::optional<double> timeout_s, int retries);

  // Tasks.
  // `needs` is a handle, or None; `pack` makes pickles of what messages cannot say.
  std::int64_t submit(const FunctionHandle& function, nb::handle arguments, nb::handle keywords,
                      const TermsHandle& terms, nb::handle memory, nb::handle owner, nb::handle needs, nb::handle pack);
  std::int64_t submit_map(const FunctionHandle& function, nb::list items, bool star, const TermsHandle& terms,
                          nb::handle owner, nb::handle needs, nb::handle pack);
  /// The same call again, as a task of the same number that keeps its place.
  void resubmit(TaskHandle& handle, nb::handle owner);
  void cancel(std::int64_t number, bool even_if_it_runs, Closing how = Closing::kill);
  void interrupt(std::int64_t number) { cancel(number, true, Closing::interrupt); }
  void cancel_waiting();
  void cancel_all();
  void break_down(const std::string& why);
  void give_up_node(std::size_t node, const std::string& why);

  /// How urgent the end is; it only grows. Other threads may be closing workers already.
  using Urgency = std::shared_ptr<std::atomic<Closing>>;
  struct Corpse {
    std::shared_ptr<Worker> gone;
    Urgency urgency;
    void close();
  };
  /// Tasks that come from now on are refused.
  void refuse_tasks();
  /// Whether tasks are refused, and the outcome of each that was taken has been handed out.
  bool is_finished();
  /// Waits for something to tell: (outcomes, events, vacancies, unknown functions). None after stop().
  nb::object wait_news();
  /// Something for wait_news() to return with.
  void nudge();
  /// Ends the engine, and then the workers, together.
  void stop();
  /// From now on workers are ended in this way, even those that are ending; and waits of threads that heed it fail.
  void hurry(Closing how);
  /// Has the core's waits in the calling thread fail when the pool is in a hurry.
  void heed_hurry() const;

  bool is_running(std::int64_t number);
  nb::dict status();

 private:
  struct Node {
    std::string name;
    NodeResources resources;
    std::vector<std::string> gpu_names;
  };
  struct Vacancy {
    std::size_t node;
    std::shared_ptr<Worker> gone;
  };
  /// What the engine has to tell, until somebody takes it.
  struct News {
    std::vector<TaskOutcome> outcomes;
    std::vector<PoolEvent> events;
    std::vector<Vacancy> vacancies;
    std::vector<std::int64_t> unknown_functions;
    [[nodiscard]] bool empty() const {
      return outcomes.empty() && events.empty() && vacancies.empty() && unknown_functions.empty();
    }
  };
  using Command = std::function<void(TaskEngine&)>;

  Message detach(EncodedObject& encoded, Task& owner);
  std::unique_ptr<EncodedObject> encode_call(Task& task, nb::handle arguments, nb::handle keywords, nb::handle memory,
                                             nb::handle pack);
  [[nodiscard]] std::string obstacle_to(const Demand& demand) const;
  std::int64_t enqueue(Task task, const TermsHandle& terms, nb::handle owner);
  void ring();
  bool post(Command command);
  template <class Question>
  void ask(Question question);
  void run();
  void publish();

  std::vector<Node> nodes_;
  std::unique_ptr<TaskEngine> engine_;
  std::unique_ptr<Channel> waker_, bell_;
  std::thread thread_;
  std::int64_t last_task_ = 0, last_function_ = 0;
  LargeBuffers large_buffers_;  // with the GIL

  std::mutex mutex_;  // of what goes to the engine
  std::vector<Task> incoming_, again_;
  std::vector<Command> commands_;
  std::size_t outstanding_ = 0;  // tasks whose outcome was not handed out
  bool asleep_ = false, rung_ = false, refusing_ = false, stopping_ = false;

  News fresh_;  // the engine's own
  std::vector<std::shared_ptr<Worker>> dismissed_;
  Urgency urgency_ = std::make_shared<std::atomic<Closing>>(Closing::finish);
  std::mutex news_mutex_;
  std::condition_variable news_came_;
  News news_;
  bool ended_ = false;
};

}  // namespace miniray::python
