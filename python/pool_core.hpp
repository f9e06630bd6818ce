// What miniray.Pool has of the core: tasks are encoded here, and what became of them is decoded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "interop.hpp"
#include "tasks/driver.hpp"

namespace miniray::python {

struct FunctionHandle {
  std::shared_ptr<TaskFunction> function;
};
struct NeedsHandle {
  std::shared_ptr<TaskNeeds> needs;  // what is in it is the engine's: see TaskDriver::change_needs
};
struct TermsHandle {
  std::shared_ptr<const TaskTerms> terms;
};
struct TaskHandle {
  Task task;
  bool may_be_tried_again = false;
};
struct SourceHandle {
  std::unique_ptr<WorkerSource> source;  ///< until a pool has it
  nb::object keeps = {};
};

struct TicketHandle {
  std::shared_ptr<Ticket> ticket;
};

/// The worker of a Python object, or one that the core made.
[[nodiscard]] std::shared_ptr<Worker> shared_worker(nb::handle worker);

/// The functions of a list of handles.
[[nodiscard]] TaskNeeds all_of(const nb::list& handles);

/// A task driver whose tasks are Python calls, and whose tasks' owners are Python objects.
class PoolCore {
 public:
  /// The log must outlive it.
  explicit PoolCore(EventLog& events) : driver(events) {}
  ~PoolCore() {
    const nb::gil_scoped_release released;  // the driver's thread may need it to let go of a worker
    driver.stop();
  }

  void start(SourceHandle& source, const std::optional<RestartPolicy>& policy, nb::handle initializer,
             nb::handle arguments, nb::handle needs, nb::handle pack);

  // Functions.
  FunctionHandle new_function();
  /// Before the first task that refers to it.
  void describe(const FunctionHandle& handle, nb::handle definition, bool by_value, std::string slot, std::string name);
  /// A worker asked for its value. `needs` are handles of what a worker has to hear of first.
  void redefine(const FunctionHandle& handle, nb::handle definition, nb::list needs);

  // Tasks. `needs` is a handle, or None; `pack` makes pickles of what messages cannot say. `number` is 0, or one that
  // the driver gave before: whoever is interrupted in here knows what to take back.
  std::int64_t submit(const FunctionHandle& function, nb::handle arguments, nb::handle keywords,
                      const TermsHandle& terms, nb::handle memory, nb::handle owner, nb::handle needs, nb::handle pack,
                      std::int64_t number);
  std::int64_t submit_map(const FunctionHandle& function, nb::list items, bool star, const TermsHandle& terms,
                          nb::handle owner, nb::handle needs, nb::handle pack, std::int64_t number);
  /// The same call again, as a task of the same number that keeps its place.
  void resubmit(TaskHandle& handle, nb::handle owner);

  /// Waits for something to tell: (outcomes, tickets, unknown functions, whether there are events). None after the end.
  nb::object wait_news();
  nb::dict status();
  nb::list workers();

  TaskDriver driver;

 private:
  std::int64_t submit(Task task, nb::list parts, CallVerb verb, const TermsHandle& terms, nb::handle owner,
                      nb::handle pack, std::int64_t number);

  std::int64_t last_function_ = 0;
  LargeBuffers large_buffers_;  // with the GIL
  nb::object source_keeps_;
};

}  // namespace miniray::python
