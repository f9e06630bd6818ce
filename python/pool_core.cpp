#include "pool_core.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <future>

#include "calls.hpp"
#include "calls/call_format.hpp"
#include "object_builder.hpp"
#include "ready_worker.hpp"
#include "worker/close_all.hpp"

namespace miniray::python {
namespace {

constexpr std::int64_t initializer_number = -1;

nb::object text(const std::string& bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

// While a task waits, its owner lives: the garbage collector need not visit it, and a million of them, again and
// again.
void hold(nb::handle owner) {
  owner.inc_ref();
  if (PyObject_GC_IsTracked(owner.ptr()) != 0) PyObject_GC_UnTrack(owner.ptr());
}

Message encode_definition(std::int64_t number, nb::handle definition) {
  nb::list parts;
  parts.append(number);
  parts.append(definition);
  EncodedObject encoded(parts, Codec::msgpack);
  encoded.set_kind(Message::Kind::call, {.verb = static_cast<std::uint8_t>(CallVerb::define)});
  return std::move(encoded).detach();
}

TaskNeeds all_of(const nb::list& handles) {
  TaskNeeds all;
  for (const nb::handle handle : handles) all.push_back(nb::cast<FunctionHandle&>(handle).function);
  return all;
}

std::shared_ptr<const TaskNeeds> needs_of(nb::handle handle) {
  return handle.is_none() ? nullptr : nb::cast<NeedsHandle&>(handle).needs;
}

// Notes what its arguments refer to.
std::unique_ptr<EncodedObject> encode_for(Task& task, CallVerb verb, nb::list parts, nb::handle pack) {
  nb::object more;
  std::unique_ptr<EncodedObject> encoded = encode_parts(
      std::move(parts), verb == CallVerb::map ? of_map : of_call, [pack](nb::handle value) { return pack(value); },
      &more);
  encoded->set_kind(Message::Kind::call, {task.number, 0, static_cast<std::uint8_t>(verb)});
  if (more.is_valid()) task.argument_needs = needs_of(more);
  return encoded;
}

// (owner, kind, what, worker, bytes, task): what depends on the kind; the task is there if it may be tried again.
nb::tuple object_of(TaskOutcome& outcome) {
  const nb::object owner = nb::steal(static_cast<PyObject*>(outcome.task.owner));
  if (PyObject_GC_IsTracked(owner.ptr()) == 0) PyObject_GC_Track(owner.ptr());
  const char* kind = nullptr;
  nb::object what = nb::none();
  switch (outcome.kind) {
    case TaskOutcome::Kind::reply: {
      const ReplyVerb verb = reply_verb(outcome.reply);
      const nb::object body = decode_object(outcome.reply);
      const std::int64_t ns = outcome.reply.head.time_ns;
      if (verb == ReplyVerb::value) return nb::make_tuple(owner, "value", body, nb::none(), outcome.reply.size(), ns);
      kind = verb == ReplyVerb::values ? "values" : verb == ReplyVerb::pickle ? "pickle" : "error";
      if (verb != ReplyVerb::error && verb != ReplyVerb::unknown)
        return nb::make_tuple(owner, kind, body, outcome.worker, outcome.reply.size(), ns);
      what = nb::make_tuple(verb == ReplyVerb::error ? "error" : "unknown", body);
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
  return nb::make_tuple(owner, kind, what, outcome.worker, nb::int_(0), nb::cast(TaskHandle{std::move(outcome.task)}));
}

void close_together(const std::vector<std::shared_ptr<Worker>>& workers, const PoolCore::Urgency& urgency) {
  std::vector<Worker*> all;
  for (const std::shared_ptr<Worker>& worker : workers) all.push_back(worker.get());
  CloseOptions options;
  options.urgency = urgency.get();
  try {
    Closer(all, options).run();
  } catch (const Error&) {  // the pool is in a hurry: they have ended
  }
}

}  // namespace

PoolCore::PoolCore() {
  ChannelOptions quiet;
  quiet.spin_us = 0;
  auto [here, there] = Channel::pair(quiet);
  waker_ = std::make_unique<Channel>(std::move(here));
  bell_ = std::make_unique<Channel>(std::move(there));
}

std::size_t PoolCore::add_node(const std::string& name, double cpus, std::size_t gpus,
                               std::vector<std::string> gpu_names, const Amounts& custom) {
  nodes_.push_back({name, NodeResources(cpus, gpus, custom), std::move(gpu_names)});
  return nodes_.size() - 1;
}

void PoolCore::start(nb::handle initializer, nb::handle arguments, nb::handle needs, nb::handle pack) {
  TaskEngine::Options options;
  if (!initializer.is_none()) {
    Task task;
    task.function = nb::cast<FunctionHandle&>(initializer).function;
    task.needs = needs_of(needs);
    task.number = initializer_number;
    task.call = std::move(*encode_call(task, arguments, nb::dict(), nb::none(), pack)).detach();
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

void PoolCore::add_worker(std::size_t node, nb::handle worker, bool shares_clock) {
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

void PoolCore::set_link(std::size_t node, nb::handle link) {
  auto taken = std::make_shared<Channel>(std::move(nb::cast<Channel&>(link)));
  post([node, taken](TaskEngine& engine) { engine.set_link(node, std::move(*taken)); });
}

FunctionHandle PoolCore::new_function() {
  auto function = std::make_shared<TaskFunction>();
  function->number = ++last_function_;
  return {function};
}

void PoolCore::describe(const FunctionHandle& handle, nb::handle definition, bool by_value, std::string slot,
                        std::string name) {
  TaskFunction& function = *handle.function;
  if (!function.name.empty()) return;  // workers have heard of it: redefine() tells them more
  function.definition = encode_definition(function.number, definition);
  function.by_value = by_value;
  function.slot = std::move(slot);
  function.name = std::move(name);
}

void PoolCore::redefine(const FunctionHandle& handle, nb::handle definition, nb::list needs) {
  Message encoded = encode_definition(handle.function->number, definition);
  post([function = handle.function, encoded = std::move(encoded), needs = all_of(needs)](TaskEngine& engine) mutable {
    function->definition = std::move(encoded);
    function->by_value = true;
    function->needs.assign(needs.begin(), needs.end());
    ++function->revision;
    engine.defined(*function);
  });
}

NeedsHandle PoolCore::needs(nb::list handles) { return {std::make_shared<TaskNeeds>(all_of(handles))}; }

void PoolCore::change_needs(const NeedsHandle& handle, nb::list handles) {
  post([needs = handle.needs, changed = all_of(handles)](TaskEngine&) mutable { *needs = std::move(changed); });
}

TermsHandle PoolCore::terms(double cpus, double gpus, const Amounts& custom, const std::string& node,
                            const std::string& strategy, std::optional<double> timeout_s, int retries) {
  auto made = std::make_shared<TaskTerms>();
  made->demand = {cpus, gpus, custom, node, strategy == "pack" ? Strategy::pack : Strategy::spread};
  check(made->demand);
  made->timeout_s = timeout_s;
  made->retries = retries;
  if (const std::string obstacle = obstacle_to(made->demand); !obstacle.empty()) throw UsageError(obstacle);
  return {made};
}

std::string PoolCore::obstacle_to(const Demand& demand) const {
  TaskEngine probe({});
  for (const Node& node : nodes_) probe.add_node(node.name, node.resources, node.gpu_names);
  return probe.obstacle_to(demand);
}

std::unique_ptr<EncodedObject> PoolCore::encode_call(Task& task, nb::handle arguments, nb::handle keywords,
                                                     nb::handle memory, nb::handle pack) {
  nb::list parts;
  parts.append(task.function->number);
  parts.append(nb::steal(PySequence_List(arguments.ptr())));
  parts.append(keywords);
  if (!memory.is_none()) parts.append(memory);
  return encode_for(task, CallVerb::call, std::move(parts), pack);
}

// Buffers that other tasks have too are theirs as well.
Message PoolCore::detach(EncodedObject& encoded, Task& owner) {
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

std::int64_t PoolCore::submit(const FunctionHandle& function, nb::handle arguments, nb::handle keywords,
                              const TermsHandle& terms, nb::handle memory, nb::handle owner, nb::handle needs,
                              nb::handle pack) {
  Task task;
  task.number = ++last_task_;
  task.function = function.function;
  task.needs = needs_of(needs);
  const std::unique_ptr<EncodedObject> encoded = encode_call(task, arguments, keywords, memory, pack);
  task.call = detach(*encoded, task);
  return enqueue(std::move(task), terms, owner);
}

std::int64_t PoolCore::submit_map(const FunctionHandle& function, nb::list items, bool star, const TermsHandle& terms,
                                  nb::handle owner, nb::handle needs, nb::handle pack) {
  Task task;
  task.number = ++last_task_;
  task.function = function.function;
  task.needs = needs_of(needs);
  nb::list parts;
  parts.append(function.function->number);
  parts.append(items);
  parts.append(star);
  const std::unique_ptr<EncodedObject> encoded = encode_for(task, CallVerb::map, std::move(parts), pack);
  task.call = detach(*encoded, task);
  return enqueue(std::move(task), terms, owner);
}

std::int64_t PoolCore::enqueue(Task task, const TermsHandle& terms, nb::handle owner) {
  task.terms = terms.terms;
  const std::int64_t number = task.number;
  const std::scoped_lock lock(mutex_);  // held briefly, by whoever
  if (refusing_) throw std::runtime_error("cannot schedule new futures after shutdown");
  hold(owner);
  task.owner = owner.ptr();
  ++outstanding_;
  incoming_.push_back(std::move(task));
  ring();
  return number;
}

void PoolCore::resubmit(TaskHandle& handle, nb::handle owner) {
  hold(owner);
  handle.task.owner = owner.ptr();
  const nb::gil_scoped_release released;
  const std::scoped_lock lock(mutex_);
  ++outstanding_;
  again_.push_back(std::move(handle.task));
  ring();
}

void PoolCore::cancel(std::int64_t number, bool even_if_it_runs, Closing how) {
  post([=](TaskEngine& engine) { engine.cancel(number, even_if_it_runs, how); });
}

void PoolCore::cancel_waiting() {
  post([](TaskEngine& engine) { engine.cancel_waiting(); });
}

void PoolCore::cancel_all() {
  post([](TaskEngine& engine) { engine.cancel_all(); });
}

void PoolCore::break_down(const std::string& why) {
  post([why](TaskEngine& engine) { engine.break_down(why); });
}

void PoolCore::give_up_node(std::size_t node, const std::string& why) {
  post([node, why](TaskEngine& engine) { engine.give_up_node(node, why); });
}

// Has the engine look, if it sleeps. With the lock.
void PoolCore::ring() {
  if (!asleep_ || bell_ == nullptr || std::exchange(rung_, true)) return;
  (void)bell_->send_some(encode(Value()));
}

bool PoolCore::post(Command command) {
  const std::scoped_lock lock(mutex_);
  if (stopping_ || !engine_) return false;
  commands_.push_back(std::move(command));
  ring();
  return true;
}

// Waits for the engine to have run it, without the GIL.
template <class Question>
void PoolCore::ask(Question question) {
  const nb::gil_scoped_release released;
  std::promise<void> told;
  const bool running = post([&](TaskEngine& engine) {
    question(engine);
    told.set_value();
  });
  if (running) told.get_future().wait();
}

void PoolCore::nudge() {
  post([this](TaskEngine&) { fresh_.events.push_back({"shutdown", {}, {}, {}, 0}); });
}

bool PoolCore::is_running(std::int64_t number) {
  bool running = false;
  ask([&](const TaskEngine& engine) { running = engine.is_running(number); });
  return running;
}

nb::dict PoolCore::status() {
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

void PoolCore::run() {
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

void PoolCore::publish() {
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

void PoolCore::refuse_tasks() {
  const std::scoped_lock lock(mutex_);
  refusing_ = true;
}

bool PoolCore::is_finished() {
  const std::scoped_lock lock(mutex_);
  return refusing_ && outstanding_ == 0;
}

nb::object PoolCore::wait_news() {
  News news;
  {
    const nb::gil_scoped_release released;
    std::unique_lock lock(news_mutex_);
    news_came_.wait(lock, [&] { return !news_.empty() || ended_; });
    news = std::exchange(news_, {});
  }
  if (news.empty()) return nb::none();
  {
    const std::scoped_lock lock(mutex_);
    outstanding_ -= news.outcomes.size();
  }
  nb::list outcomes, events, vacancies, unknown;
  for (TaskOutcome& outcome : news.outcomes) outcomes.append(object_of(outcome));
  for (const PoolEvent& event : news.events)
    events.append(nb::make_tuple(event.kind, event.node, event.worker, text(event.text), event.task));
  for (Vacancy& vacancy : news.vacancies)
    vacancies.append(nb::make_tuple(vacancy.node, nb::cast(Corpse{std::move(vacancy.gone), urgency_})));
  for (const std::int64_t number : news.unknown_functions) unknown.append(number);
  return nb::make_tuple(outcomes, events, vacancies, unknown);
}

void PoolCore::stop() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    ring();
  }
  thread_.join();
  std::vector<Command> unheard;  // a worker that came too late ends with its command
  {
    const std::scoped_lock lock(mutex_);
    unheard.swap(commands_);
    engine_.reset();
    waker_.reset();
    bell_.reset();
  }
  close_together(std::exchange(dismissed_, {}), urgency_);
}

void PoolCore::hurry(Closing how) {
  if (how > urgency_->load()) urgency_->store(how);
}

void PoolCore::heed_hurry() const { heed(urgency_); }

void PoolCore::Corpse::close() {
  if (gone) close_together({std::exchange(gone, nullptr)}, urgency);
}

}  // namespace miniray::python
