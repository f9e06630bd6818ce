// The part of miniray.Pool that is in the core: the task engine in a thread of its own, which never waits for Python.
// miniray/pool.py has the rest.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "calls.hpp"
#include "calls/call_format.hpp"
#include "miniray/channel.hpp"
#include "object_builder.hpp"
#include "ready_worker.hpp"
#include "tasks/engine.hpp"

namespace miniray::python {
namespace {

constexpr std::int64_t initializer_number = -1;

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

using Function = std::shared_ptr<TaskFunction>;
using Terms = std::shared_ptr<const TaskTerms>;
struct FunctionHandle {
  Function function;
};
struct TermsHandle {
  Terms terms;
};
struct TaskHandle {
  Task task;
};

class PoolCore {
 public:
  PoolCore() {
    ChannelOptions quiet;
    quiet.spin_us = 0;
    auto [here, there] = Channel::pair(quiet);
    waker_ = std::make_unique<Channel>(std::move(here));
    bell_ = std::make_unique<Channel>(std::move(there));
  }
  PoolCore(const PoolCore&) = delete;
  PoolCore& operator=(const PoolCore&) = delete;
  ~PoolCore() { (void)stop(); }

  // Before start().
  std::size_t add_node(const std::string& name, double cpus, std::size_t gpus, std::vector<std::string> gpu_names,
                       const Amounts& custom) {
    nodes_.push_back({name, NodeResources(cpus, gpus, custom), std::move(gpu_names)});
    return nodes_.size() - 1;
  }

  void start(nb::handle initializer, nb::handle arguments) {
    TaskEngine::Options options;
    if (!initializer.is_none()) {
      Task task;
      task.function = nb::cast<FunctionHandle&>(initializer).function;
      task.number = initializer_number;
      task.call = encode_call(initializer_number, task.function->number, arguments, nb::dict(), nb::none());
      set_lease(task.call, 0);
      options.initializer = std::move(task);
    }
    options.on_event = [this](PoolEvent event) { fresh_.events.push_back(std::move(event)); };
    options.on_vacancy = [this](std::size_t node, std::shared_ptr<Worker> gone) {
      fresh_.vacancies.push_back({node, std::move(gone)});
    };
    options.on_unknown = [this](const TaskFunction& function) { fresh_.unknown_functions.push_back(function.number); };
    engine_ = std::make_unique<TaskEngine>(std::move(options));
    for (Node& node : nodes_) engine_->add_node(node.name, node.resources, node.gpu_names);
    thread_ = std::thread([this] { run(); });
  }

  void add_worker(std::size_t node, nb::handle worker, bool shares_clock) {
    std::shared_ptr<Worker> added;
    if (nb::isinstance<ReadyWorker>(worker)) {
      added = std::move(nb::cast<ReadyWorker&>(worker).worker);
    } else {
      worker.inc_ref();  // the object's worker lives as long as the object
      added = std::shared_ptr<Worker>(&nb::cast<Worker&>(worker), [worker](Worker*) {
        const nb::gil_scoped_acquire gil;
        worker.dec_ref();
      });
    }
    post([node, added = std::move(added), shares_clock](TaskEngine& engine) {
      engine.add_worker(node, added, shares_clock);
    });
  }

  void set_link(std::size_t node, nb::handle link) {
    auto taken = std::make_shared<Channel>(std::move(nb::cast<Channel&>(link)));
    post([node, taken](TaskEngine& engine) { engine.set_link(node, std::move(*taken)); });
  }

  // Functions and terms.
  FunctionHandle define(nb::handle definition, bool by_value) {
    auto function = std::make_shared<TaskFunction>();
    function->number = ++last_function_;
    function->definition = encode_definition(function->number, definition);
    function->by_value = by_value;
    return {function};
  }
  void redefine(const FunctionHandle& handle, nb::handle definition) {
    Message encoded = encode_definition(handle.function->number, definition);
    post([function = handle.function, encoded = std::move(encoded)](TaskEngine& engine) mutable {
      function->definition = std::move(encoded);
      function->by_value = true;
      ++function->revision;
      engine.defined(*function);
    });
  }
  TermsHandle terms(double cpus, double gpus, const Amounts& custom, const std::string& node,
                    const std::string& strategy, std::optional<double> timeout_s, int retries) {
    auto made = std::make_shared<TaskTerms>();
    made->demand = {cpus, gpus, custom, node, strategy == "pack" ? Strategy::pack : Strategy::spread};
    check(made->demand);
    made->timeout_s = timeout_s;
    made->retries = retries;
    if (const std::string obstacle = obstacle_to(made->demand); !obstacle.empty()) throw UsageError(obstacle);
    return {made};
  }

  // Tasks.
  std::int64_t submit(const FunctionHandle& function, nb::handle arguments, nb::handle keywords,
                      const TermsHandle& terms, nb::handle memory, nb::handle owner) {
    Task task;
    task.number = ++last_task_;
    task.call = encode_call(task.number, function.function->number, arguments, keywords, memory, &task);
    return enqueue(std::move(task), function, terms, owner);
  }
  std::int64_t submit_map(const FunctionHandle& function, nb::list items, bool star, const TermsHandle& terms,
                          nb::handle owner) {
    Task task;
    task.number = ++last_task_;
    nb::list parts;
    parts.append(task.number);
    parts.append("map");
    parts.append(function.function->number);
    parts.append(items);
    parts.append(star);
    parts.append(some_lease);
    task.call = detach(*encode_parts(std::move(parts), 3, 4, Message::Kind::call), task);
    return enqueue(std::move(task), function, terms, owner);
  }
  /// The same call again, as a task of the same number that keeps its place.
  void resubmit(TaskHandle& handle, nb::handle owner) {
    hold(owner);
    handle.task.owner = owner.ptr();
    const nb::gil_scoped_release released;
    const std::scoped_lock lock(mutex_);
    again_.push_back(std::move(handle.task));
    ring();
  }
  void cancel(std::int64_t number, bool even_if_it_runs) {
    post([=](TaskEngine& engine) { engine.cancel(number, even_if_it_runs); });
  }
  void cancel_waiting() {
    post([](TaskEngine& engine) { engine.cancel_waiting(); });
  }
  void break_down(const std::string& why) {
    post([why](TaskEngine& engine) { engine.break_down(why); });
  }

  /// Waits for something to tell: (outcomes, events, vacancies, unknown functions). None after stop().
  nb::object wait_news() {
    News news;
    {
      const nb::gil_scoped_release released;
      std::unique_lock lock(news_mutex_);
      news_came_.wait(lock, [&] { return !news_.empty() || ended_; });
      news = std::exchange(news_, {});
    }
    if (news.empty()) return nb::none();
    nb::list outcomes, events, vacancies, unknown;
    for (TaskOutcome& outcome : news.outcomes) outcomes.append(object_of(outcome));
    for (const PoolEvent& event : news.events)
      events.append(nb::make_tuple(event.kind, event.node, event.worker, text(event.text), event.task));
    for (Vacancy& vacancy : news.vacancies)
      vacancies.append(nb::make_tuple(vacancy.node, nb::cast(Corpse{std::move(vacancy.gone)})));
    for (const std::int64_t number : news.unknown_functions) unknown.append(number);
    return nb::make_tuple(outcomes, events, vacancies, unknown);
  }

  struct Corpse {
    std::shared_ptr<Worker> gone;
  };

  /// Ends the engine; the workers have been told to end.
  std::vector<std::shared_ptr<Worker>> stop() {
    if (thread_.joinable()) {
      {
        const std::scoped_lock lock(mutex_);
        stopping_ = true;
        ring();
      }
      thread_.join();
      std::vector<Command> unheard;  // a worker that came too late ends with its command
      const std::scoped_lock lock(mutex_);
      unheard.swap(commands_);
      engine_.reset();
      waker_.reset();
      bell_.reset();
    }
    return std::exchange(dismissed_, {});
  }

  /// Something for wait_news() to return with.
  void nudge() {
    post([this](TaskEngine&) { fresh_.events.push_back({"shutdown", {}, {}, {}, 0}); });
  }

  bool is_running(std::int64_t number) {
    bool running = false;
    ask([&](const TaskEngine& engine) { running = engine.is_running(number); });
    return running;
  }

  nb::dict status() {
    TaskEngine::Census census;
    std::vector<TaskEngine::WorkerStatus> workers;
    ask([&](const TaskEngine& engine) {
      census = engine.census();
      workers = engine.workers();
    });
    nb::dict status;
    status["waiting"] = census.waiting;
    status["running"] = census.running;
    status["idle"] = census.idle;
    nb::list all;
    for (const TaskEngine::WorkerStatus& worker : workers)
      all.append(nb::make_tuple(worker.name, worker.node, worker.pid, worker.state, worker.tasks));
    status["workers"] = all;
    return status;
  }

 private:
  struct Node {
    std::string name;
    NodeResources resources;
    std::vector<std::string> gpu_names;
  };
  using Command = std::function<void(TaskEngine&)>;

  static nb::object text(const std::string& bytes) {
    return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
  }

  Message encode_call(std::int64_t number, std::int64_t function, nb::handle arguments, nb::handle keywords,
                      nb::handle memory, Task* owner = nullptr) {
    nb::list parts;
    parts.append(number);
    parts.append("call");
    parts.append(function);
    parts.append(nb::steal(PySequence_List(arguments.ptr())));
    parts.append(keywords);
    parts.append(memory);
    parts.append(some_lease);
    const std::unique_ptr<EncodedObject> encoded = encode_parts(std::move(parts), 3, 5, Message::Kind::call);
    return owner == nullptr ? std::move(*encoded).detach() : detach(*encoded, *owner);
  }

  // Buffers that other tasks have too are theirs as well.
  Message detach(EncodedObject& encoded, Task& owner) {
    std::vector<std::uint64_t> places(encoded.buffers().size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      Buffer& buffer = encoded.buffers()[i];
      if (buffer.size < limits::shared_buffer_bytes_min) continue;
      LargeBuffers::Recognised found = large_buffers_.recognise(buffer.bytes());
      buffer = std::move(found.buffer);
      if (!found.known) continue;
      places[i] = Message::kept_place | found.known->number;
      owner.large.push_back(std::move(found.known));
    }
    Message message = std::move(encoded).detach();
    if (!owner.large.empty()) message.places = std::move(places);
    return message;
  }

  static Message encode_definition(std::int64_t number, nb::handle definition) {
    nb::list parts;
    parts.append(0);
    parts.append("define");
    parts.append(number);
    parts.append(definition);
    EncodedObject encoded(parts, Codec::msgpack);
    encoded.set_kind(Message::Kind::call);
    return std::move(encoded).detach();
  }

  [[nodiscard]] std::string obstacle_to(const Demand& demand) const {
    TaskEngine probe({});
    for (const Node& node : nodes_) probe.add_node(node.name, node.resources, node.gpu_names);
    return probe.obstacle_to(demand);
  }

  std::int64_t enqueue(Task task, const FunctionHandle& function, const TermsHandle& terms, nb::handle owner) {
    task.function = function.function;
    task.terms = terms.terms;
    hold(owner);
    task.owner = owner.ptr();
    const std::int64_t number = task.number;
    const std::scoped_lock lock(mutex_);  // held briefly, by whoever
    incoming_.push_back(std::move(task));
    ring();
    return number;
  }

  // While a task waits, its owner lives: the garbage collector need not visit it, and a million of them, again and
  // again.
  static void hold(nb::handle owner) {
    owner.inc_ref();
    if (PyObject_GC_IsTracked(owner.ptr()) != 0) PyObject_GC_UnTrack(owner.ptr());
  }

  // Has the engine look, if it sleeps. With the lock.
  void ring() {
    if (!asleep_ || bell_ == nullptr || std::exchange(rung_, true)) return;
    (void)bell_->send_some(encode(Value()));
  }

  bool post(Command command) {
    const std::scoped_lock lock(mutex_);
    if (stopping_ || !engine_) return false;
    commands_.push_back(std::move(command));
    ring();
    return true;
  }

  // Waits for the engine to have run it, without the GIL.
  template <class Question>
  void ask(Question question) {
    const nb::gil_scoped_release released;
    std::promise<void> told;
    const bool running = post([&](TaskEngine& engine) {
      question(engine);
      told.set_value();
    });
    if (running) told.get_future().wait();
  }

  void run() {
    while (true) {
      std::vector<Task> incoming, again;
      std::vector<Command> commands;
      bool stopping = false;
      {
        const std::scoped_lock lock(mutex_);
        incoming.swap(incoming_);
        again.swap(again_);
        commands.swap(commands_);
        stopping = stopping_;
        asleep_ = true;
        rung_ = false;
      }
      for (Task& task : incoming) engine_->submit(std::move(task));
      for (Task& task : again) engine_->submit_again(std::move(task));
      for (const Command& command : commands) command(*engine_);
      if (stopping) break;
      publish();  // what the commands had to tell must not wait for a turn
      engine_->turn(-1, waker_.get());
      publish();
    }
    dismissed_ = engine_->dismiss();
    publish();
    {
      const std::scoped_lock lock(news_mutex_);
      ended_ = true;
    }
    news_came_.notify_all();
  }

  void publish() {
    std::vector<TaskOutcome> outcomes = engine_->take_outcomes();
    if (outcomes.empty() && fresh_.empty()) return;
    {
      const std::scoped_lock lock(news_mutex_);
      std::ranges::move(outcomes, std::back_inserter(news_.outcomes));
      std::ranges::move(fresh_.events, std::back_inserter(news_.events));
      std::ranges::move(fresh_.vacancies, std::back_inserter(news_.vacancies));
      std::ranges::move(fresh_.unknown_functions, std::back_inserter(news_.unknown_functions));
    }
    fresh_ = {};
    news_came_.notify_one();
  }

  // (owner, kind, what, worker, bytes, task): what depends on the kind; the task is there if it may be tried again.
  static nb::tuple object_of(TaskOutcome& outcome) {
    const nb::object owner = nb::steal(static_cast<PyObject*>(outcome.task.owner));
    if (PyObject_GC_IsTracked(owner.ptr()) == 0) PyObject_GC_Track(owner.ptr());
    const char* kind = nullptr;
    nb::object what = nb::none();
    switch (outcome.kind) {
      case TaskOutcome::Kind::reply: {
        const ReplyHead head = parse_reply_head(outcome.reply);
        const nb::object parts = decode_object(outcome.reply);
        if (head.kind == ReplyKind::value)
          return nb::make_tuple(owner, "value", parts[3], nb::none(), outcome.reply.size(), head.ns);
        kind = head.kind == ReplyKind::values ? "values" : head.kind == ReplyKind::pickle ? "pickle" : "error";
        if (head.kind != ReplyKind::error && head.kind != ReplyKind::unknown)
          return nb::make_tuple(owner, kind, parts, outcome.worker, outcome.reply.size(), head.ns);
        what = parts;
        break;
      }
      case TaskOutcome::Kind::died:
        kind = "died";
        what = died_object(WorkerDied(*outcome.certificate));
        break;
      case TaskOutcome::Kind::timed_out:
        kind = "timeout";
        what = text(outcome.text);
        break;
      case TaskOutcome::Kind::cancelled:
        kind = "cancelled";
        break;
      case TaskOutcome::Kind::broken:
        kind = "broken";
        what = text(outcome.text);
        break;
    }
    return nb::make_tuple(owner, kind, what, outcome.worker, nb::int_(0),
                          nb::cast(TaskHandle{std::move(outcome.task)}));
  }

  std::vector<Node> nodes_;
  std::unique_ptr<TaskEngine> engine_;
  std::unique_ptr<Channel> waker_, bell_;
  std::thread thread_;
  std::int64_t last_task_ = 0, last_function_ = 0;
  LargeBuffers large_buffers_;  // with the GIL

  std::mutex mutex_;  // of what goes to the engine
  std::vector<Task> incoming_, again_;
  std::vector<Command> commands_;
  bool asleep_ = false, rung_ = false, stopping_ = false;

  News fresh_;  // the engine's own
  std::vector<std::shared_ptr<Worker>> dismissed_;
  std::mutex news_mutex_;
  std::condition_variable news_came_;
  News news_;
  bool ended_ = false;
};

}  // namespace

void bind_pool(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<FunctionHandle>(module, "_TaskFunction").def_prop_ro("number", [](const FunctionHandle& self) {
    return self.function->number;
  });
  nb::class_<TermsHandle>(module, "_TaskTerms");
  nb::class_<TaskHandle>(module, "_Task")
      .def_prop_ro("tries", [](const TaskHandle& self) { return self.task.tries; })
      .def_prop_ro("retries", [](const TaskHandle& self) { return self.task.terms->retries; })
      .def("count_try", [](TaskHandle& self) { ++self.task.tries; });
  nb::class_<PoolCore::Corpse>(module, "_GoneWorker")
      .def(
          "close", [](PoolCore::Corpse& self) { self.gone.reset(); }, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "worker_object",
          [](PoolCore::Corpse& self) {
            const nb::object known = nb::find(self.gone.get());
            return known.is_valid() ? known : nb::none();
          },
          "The Python object, if it is one.");
  nb::class_<PoolCore>(module, "_Pool")
      .def(nb::init<>())
      .def("add_node", &PoolCore::add_node, "name"_a, "cpus"_a, "gpus"_a, "gpu_names"_a, "custom"_a)
      .def("start", &PoolCore::start, "initializer"_a.none(), "arguments"_a)
      .def("add_worker", &PoolCore::add_worker, "node"_a, "worker"_a, "shares_clock"_a)
      .def("set_link", &PoolCore::set_link, "node"_a, "link"_a)
      .def("define", &PoolCore::define, "definition"_a, "by_value"_a)
      .def("redefine", &PoolCore::redefine, "function"_a, "definition"_a)
      .def("terms", &PoolCore::terms, "cpus"_a, "gpus"_a, "custom"_a, "node"_a, "strategy"_a, "timeout_s"_a.none(),
           "retries"_a)
      .def("submit", &PoolCore::submit, "function"_a, "arguments"_a, "keywords"_a, "terms"_a, "memory"_a.none(),
           "owner"_a)
      .def("submit_map", &PoolCore::submit_map, "function"_a, "items"_a, "star"_a, "terms"_a, "owner"_a,
           nb::sig("def submit_map(self, function: _TaskFunction, items: list[typing.Any], star: bool, terms: "
                   "_TaskTerms, owner: object) -> int"))
      .def("resubmit", &PoolCore::resubmit, "task"_a, "owner"_a)
      .def("cancel", &PoolCore::cancel, "number"_a, "even_if_it_runs"_a)
      .def("cancel_waiting", &PoolCore::cancel_waiting)
      .def("break_down", &PoolCore::break_down, "why"_a)
      .def("wait_news", &PoolCore::wait_news,
           nb::sig(
               "def wait_news(self) -> tuple[list[typing.Any], list[typing.Any], list[typing.Any], list[int]] | None"))
      .def("status", &PoolCore::status, nb::sig("def status(self) -> dict[str, typing.Any]"))
      .def("nudge", &PoolCore::nudge)
      .def("is_running", &PoolCore::is_running, "number"_a)
      .def(
          "stop",
          [](PoolCore& self) {
            std::vector<std::shared_ptr<Worker>> workers;
            {
              const nb::gil_scoped_release released;
              workers = self.stop();
            }
            nb::list all;
            for (std::shared_ptr<Worker>& worker : workers) all.append(nb::cast(PoolCore::Corpse{std::move(worker)}));
            return all;
          },
          nb::sig("def stop(self) -> list[_GoneWorker]"));
}

}  // namespace miniray::python
