// The C++ side of tests/parity_test.py. On a node it is a worker server, with the functions that the scenarios call; by
// itself it runs the scenarios of a table on such nodes, or on Python's, and prints what it saw.
//   parity_program <table.json> <folder> <python, or nothing for workers of its own>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <miniray/miniray.hpp>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.hpp"
#include "tests/wait_until.hpp"
#include "wire/json_text.hpp"

namespace {

using namespace miniray;
using Future = std::variant<TaskFuture<Value>, CallFuture<Value>>;

const std::string module_name = "parity_functions.";

std::string wait_for(const std::string& begun, const std::string& go) {
  std::ofstream(begun).flush();
  wait_until(go, [&] { return std::filesystem::exists(go); });
  return "went";
}

std::int64_t fail_at(std::int64_t item) {
  return item < 10 ? item : throw std::runtime_error("item " + std::to_string(item));
}

std::int64_t die_at(std::int64_t item) {
  if (item == 5) kill(getpid(), SIGKILL);
  return item;
}

std::string die_once(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    std::ofstream(path).flush();
    kill(getpid(), SIGKILL);
  }
  return "alive";
}

void fail_once(const std::string& path) {
  if (std::filesystem::exists(path)) return;
  std::ofstream(path).flush();
  throw std::runtime_error("no state");
}

// Says that it is ready, and dies of its first message.
void rank(Handle& handle) {
  (void)handle.recv();
  handle.send({{"status", "ready"}});
  (void)handle.recv();
  kill(getpid(), SIGKILL);
}

void offer_functions() {
  registry()
      .add(module_name + "square", [](double x) { return x * x; })
      .add(module_name + "fail", [](const std::string& text) { throw std::runtime_error(text); })
      .add(module_name + "fail_at", fail_at)
      .add(module_name + "fail_once", fail_once)
      .add(module_name + "die", [] { kill(getpid(), SIGKILL); })
      .add(module_name + "die_at", die_at)
      .add(module_name + "die_once", die_once)
      .add(module_name + "wait_for", wait_for)
      .add(module_name + "exists", [](const std::string& path) { return std::filesystem::exists(path); })
      .add(module_name + "wait_for_pair",
           [](const List& files) { return wait_for(files[0].string(), files[1].string()); })
      .add(module_name + "allocate", [](std::int64_t count) {
        return static_cast<std::int64_t>(std::string(static_cast<std::size_t>(count), 'x').size());
      });
}

const Value& field(const Value& map, const char* name) {
  const Value* found = map.find(name);
  return found != nullptr ? *found : throw std::runtime_error(std::string("the table lacks ") + name);
}

double number(const Value& value) {
  return value.kind() == Value::Kind::integer ? static_cast<double>(value.integer()) : value.real();
}

// What became of a step: {"is": value}, {"fails": kind, "with": text}, or nothing to tell.
template <class Step>
Value seen(Step step) {
  const auto failed = [](const char* kind, const std::exception& error) {
    return Value{{"fails", kind}, {"with", error.what()}};
  };
  try {
    return step();
  } catch (const TaskOutOfMemory& error) {
    return failed("out of memory", error);
  } catch (const CallError& error) {
    return failed("raised", error);
  } catch (const WorkerDied& error) {
    return failed("died", error);
  } catch (const TaskTimeout& error) {
    return failed("timed out", error);
  } catch (const TimeoutError& error) {
    return failed("waited too long", error);
  } catch (const Cancelled& error) {
    return failed("cancelled", error);
  } catch (const PoolBroken& error) {
    return failed("broken", error);
  } catch (const GroupError& error) {
    return failed("group failed", error);
  } catch (const UsageError& error) {
    const bool closed = std::string(error.what()).find("has been shut down") != std::string::npos;
    return failed(closed ? "shut down" : "refused", error);
  }
}

double number_in(const Value& map, const char* name, double otherwise) {
  const Value* found = map.find(name);
  return found != nullptr ? number(*found) : otherwise;
}

RestartPolicy policy_in(const Value& scenario) {
  const Value& restart = field(scenario, "restart");
  RestartPolicy policy;
  policy.max_restarts = static_cast<int>(field(restart, "max_restarts").integer());
  policy.window_s = number_in(restart, "window_s", policy.window_s);
  policy.backoff_s = number_in(restart, "backoff_s", policy.backoff_s);
  policy.backoff_max_s = number_in(restart, "backoff_max_s", policy.backoff_max_s);
  return policy;
}

std::optional<double> seconds(const Value& step, const char* name) {
  const Value* found = step.find(name);
  return found == nullptr ? std::nullopt : std::optional(number(*found));
}

// The steps of one scenario; run_here() does those that are its own.
class Scenario {
 public:
  explicit Scenario(std::string folder) : folder_(std::move(folder)) {}
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;
  virtual ~Scenario() = default;

  Value run(const Value& step) {
    return seen([&]() -> Value {
      if (const Value* name = step.find("result"))
        return with_future(*name, [&](const auto& future) { return Value(future.get(seconds(step, "within"))); });
      if (const Value* name = step.find("cancel"))
        return with_future(*name, [](const auto& future) { return Value(future.cancel()); });
      if (const Value* name = step.find("end_running"))
        return with_future(*name, [](const auto& future) { return Value(future.cancel()); });
      if (const Value* name = step.find("touch")) {
        std::ofstream(folder_ + "/" + name->string()).flush();
        return {};
      }
      if (const Value* name = step.find("await_file")) {
        wait_until(name->string(), [&] {
          move_on();
          return std::filesystem::exists(folder_ + "/" + name->string());
        });
        return {};
      }
      return run_here(step);
    });
  }

 protected:
  virtual Value run_here(const Value& step) = 0;
  virtual void move_on() {}
  [[nodiscard]] Value here(const Value& value) const {
    if (value.kind() == Value::Kind::list) {
      List all;
      for (const Value& element : value.list()) all.push_back(here(element));
      return all;
    }
    if (value.kind() != Value::Kind::string || !value.string().starts_with("$FOLDER")) return value;
    return Value(folder_ + value.string().substr(std::string("$FOLDER").size()));
  }
  // Calls begin(function, arguments...) for a step.
  template <class Begin>
  auto begin_with(const char* verb, const Value& step, Begin begin) const {
    const std::string name = module_name + field(step, verb).string();
    const Value arguments = here(field(step, "arguments"));
    const List& given = arguments.list();
    if (given.empty()) return begin(name);
    return given.size() == 1 ? begin(name, given[0]) : begin(name, given[0], given[1]);
  }
  Value keep(const Value& step, Future future) {
    futures_.insert_or_assign(field(step, "as").string(), std::move(future));
    return {};
  }

 private:
  template <class Use>
  Value with_future(const Value& name, Use use) {
    return {{"is", std::visit(use, futures_.at(name.string()))}};
  }

  std::string folder_;
  std::map<std::string, Future> futures_;
};

class PoolScenario : public Scenario {
 public:
  PoolScenario(Cluster& cluster, const Value& scenario, std::string folder)
      : Scenario(std::move(folder)), pool_(cluster, options_of(scenario)) {}

 protected:
  Value run_here(const Value& step) override {
    if (step.find("submit") != nullptr) return keep(step, begin("submit", step));
    // The pool may notice that it is broken before the task is submitted, or after.
    if (step.find("submit_broken") != nullptr) return {{"is", begin("submit_broken", step).get()}};
    if (const Value* function = step.find("map")) return map(function->string(), step);
    (void)field(step, "shutdown");
    pool_.shutdown();
    return {};
  }
  void move_on() override { (void)pool_.status(); }  // tasks go out in the pool's calls

 private:
  static PoolOptions options_of(const Value& scenario) {
    PoolOptions options;
    if (const Value* workers = scenario.find("workers"))
      options.start.num_workers = static_cast<int>(workers->integer());
    if (const Value* all = scenario.find("resources"))
      for (const auto& [name, amount] : all->map()) options.resources[name.string()] = number(amount);
    if (scenario.find("restart") != nullptr) options.restart = policy_in(scenario);
    return options;
  }
  [[nodiscard]] PoolView view(const Value& step) const {
    TaskOptions options;
    const Value* given = step.find("options");
    if (given == nullptr) return pool_.with(options);
    options.timeout_s = seconds(*given, "timeout");
    if (const Value* retries = given->find("retries")) options.retries = static_cast<int>(retries->integer());
    if (const Value* cpus = given->find("num_cpus")) options.num_cpus = number(*cpus);
    if (const Value* node = given->find("node")) options.node = node->string();
    if (const Value* memory = given->find("memory_bytes"))
      options.memory_bytes = static_cast<std::uint64_t>(memory->integer());
    if (const Value* all = given->find("resources"))
      for (const auto& [name, amount] : all->map()) options.resources[name.string()] = number(amount);
    return pool_.with(options);
  }
  [[nodiscard]] TaskFuture<Value> begin(const char* verb, const Value& step) const {
    return begin_with(verb, step, [with = view(step)](const std::string& name, const auto&... arguments) {
      return with.submit(name, arguments...);
    });
  }
  Value map(const std::string& function, const Value& step) {
    MapOptions options;
    if (const Value* size = step.find("chunk_size")) options.chunk_size = static_cast<std::size_t>(size->integer());
    options.timeout_s = seconds(step, "within");
    const bool star = step.find("star") != nullptr;  // which C++ has not: the item is a list
    const Value items = here(field(step, "items"));
    return {{"is", Value(view(step).map(module_name + function + (star ? "_pair" : ""), items.list(), options))}};
  }

  Pool pool_;
};

// Calls on one worker, which is supervised if the scenario has a policy.
class CallScenario : public Scenario {
 public:
  CallScenario(Cluster& cluster, const Value& scenario, std::string folder)
      : Scenario(std::move(folder)), worker_(start(cluster, scenario)), caller_(worker()) {}
  ~CallScenario() override { worker().kill(); }

 protected:
  Value run_here(const Value& step) override {
    if (step.find("kill") != nullptr) {
      worker().kill();
      (void)worker().wait();
      return {};
    }
    if (const Value* function = step.find("map"))
      return {{"is", Value(caller_.map(module_name + function->string(), field(step, "items").list()))}};
    return step.find("as") != nullptr ? keep(step, begin_call(step)) : Value{{"is", call(step)}};
  }
  void move_on() override { (void)caller_.take_replies(); }

 private:
  std::variant<Worker, SupervisedWorker> start(Cluster& cluster, const Value& scenario) {
    std::vector<Worker> started = cluster.connect_to_servers("miniray.serve_calls", {.num_workers = 1});
    if (scenario.find("restart") == nullptr) return std::move(started[0]);
    SupervisionOptions options;
    options.policy = policy_in(scenario);
    if (const Value* call_first = scenario.find("on_restart"))
      options.on_restart = [this, step = *call_first](Worker&) { (void)call(step); };
    return std::move(supervise(cluster, std::move(started), options)[0]);
  }
  [[nodiscard]] Worker& worker() {
    if (Worker* plain = std::get_if<Worker>(&worker_)) return *plain;
    return std::get<SupervisedWorker>(worker_).worker();
  }
  [[nodiscard]] Value call(const Value& step) {
    return begin_with("call", step, [this](const std::string& name, const auto&... arguments) {
      return caller_.call(name, arguments...);
    });
  }
  [[nodiscard]] CallFuture<Value> begin_call(const Value& step) {
    return begin_with("call", step, [this](const std::string& name, const auto&... arguments) {
      return caller_.call_async(name, arguments...);
    });
  }

  std::variant<Worker, SupervisedWorker> worker_;
  Caller caller_;
};

// A training group whose ranks report that they are ready, and then die.
class GroupScenario : public Scenario {
 public:
  GroupScenario(Cluster& cluster, const Value& scenario, std::string folder)
      : Scenario(std::move(folder)), cluster_(cluster), policy_(policy_in(scenario)) {}

 protected:
  Value run_here(const Value& step) override {
    GroupRunOptions options;
    options.policy = policy_;
    options.group.progress = false;
    const auto drive = [](TrainingGroup& group, int) {
      group.broadcast("go");
      (void)group.gather();
    };
    run_group(cluster_, module_name + field(step, "run_group").string(), drive, options);
    return {};
  }

 private:
  Cluster& cluster_;
  RestartPolicy policy_;
};

std::unique_ptr<Scenario> begin(Cluster& cluster, const Value& scenario, const std::string& folder) {
  const Value* of = scenario.find("of");
  if (of == nullptr) return std::make_unique<PoolScenario>(cluster, scenario, folder);
  if (of->string() == "calls") return std::make_unique<CallScenario>(cluster, scenario, folder);
  return std::make_unique<GroupScenario>(cluster, scenario, folder);
}

}  // namespace

int main(int argc, char** argv) {
  offer_functions();
  init(argc, argv, {{"miniray.serve_calls", serve_calls}, {module_name + "rank", rank}});
  if (argc < 3) return 2;
  std::ifstream file(argv[1]);
  const Value table = read_json_text(std::string(std::istreambuf_iterator<char>(file), {}));
  ClusterOptions options;
  options.progress = false;
  if (argc > 3) options.program = ServerProgram::python(argv[3]);
  NodeConfig node;
  node.host = "localhost";
  node.num_workers = 2;
  node.base_port = 0;
  if (const char* path = getenv("PYTHONPATH")) node.env["PYTHONPATH"] = path;
  Cluster cluster({node}, options);
  cluster.launch_servers("miniray.serve_calls");
  for (const Value& scenario : table.list()) {
    const std::string folder = std::string(argv[2]) + "/" + field(scenario, "name").string();
    std::filesystem::create_directories(folder);
    const std::unique_ptr<Scenario> running = begin(cluster, scenario, folder);
    List outcomes;
    for (const Value& step : field(scenario, "steps").list()) outcomes.push_back(running->run(step));
    std::cout << write_json({{"name", field(scenario, "name")}, {"outcomes", Value(std::move(outcomes))}}) << std::endl;
  }
}
