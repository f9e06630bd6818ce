// The C++ side of tests/parity_test.py. On a node it is a worker server, with the functions that the scenarios call; by
// itself it runs the scenarios of a table with a pool on such nodes, or on Python's, and prints what it saw.
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
#include <vector>

#include "base/clock.hpp"
#include "tests/wait_until.hpp"
#include "wire/json_text.hpp"

namespace {

using namespace miniray;
using Future = TaskFuture<Value>;

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

void offer_functions() {
  registry()
      .add(module_name + "square", [](double x) { return x * x; })
      .add(module_name + "fail", [](const std::string& text) { throw std::runtime_error(text); })
      .add(module_name + "fail_at", fail_at)
      .add(module_name + "die", [] { kill(getpid(), SIGKILL); })
      .add(module_name + "die_at", die_at)
      .add(module_name + "die_once", die_once)
      .add(module_name + "wait_for", wait_for)
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
  } catch (const UsageError& error) {
    const bool closed = std::string(error.what()).find("has been shut down") != std::string::npos;
    return failed(closed ? "shut down" : "refused", error);
  }
}

class Scenario {
 public:
  Scenario(Cluster& cluster, const Value& scenario, std::string folder)
      : folder_(std::move(folder)), pool_(cluster, options_of(scenario)) {}

  Value run(const Value& step) {
    return seen([&]() -> Value {
      if (const Value* function = step.find("submit")) return submit(function->string(), step);
      if (const Value* function = step.find("submit_broken")) return submit_broken(function->string(), step);
      if (const Value* name = step.find("result"))
        return {{"is", futures_.at(name->string()).get(seconds(step, "within"))}};
      if (const Value* name = step.find("cancel")) return {{"is", futures_.at(name->string()).cancel()}};
      if (const Value* name = step.find("end_running")) return {{"is", futures_.at(name->string()).cancel()}};
      if (const Value* function = step.find("map")) return map(function->string(), step);
      if (step.find("shutdown") != nullptr) pool_.shutdown();
      if (const Value* name = step.find("touch")) std::ofstream(folder_ + "/" + name->string()).flush();
      if (const Value* name = step.find("await_file"))
        wait_until(name->string(), [&] {
          (void)pool_.status();  // tasks go out in the pool's calls
          return std::filesystem::exists(folder_ + "/" + name->string());
        });
      return {};
    });
  }

 private:
  static PoolOptions options_of(const Value& scenario) {
    PoolOptions options;
    if (const Value* workers = scenario.find("workers"))
      options.start.num_workers = static_cast<int>(workers->integer());
    if (const Value* all = scenario.find("resources"))
      for (const auto& [name, amount] : all->map()) options.resources[name.string()] = number(amount);
    if (const Value* restart = scenario.find("restart"))
      options.restart = RestartPolicy{.max_restarts = static_cast<int>(field(*restart, "max_restarts").integer()),
                                      .window_s = number(field(*restart, "window_s")),
                                      .backoff_s = number(field(*restart, "backoff_s"))};
    return options;
  }
  static std::optional<double> seconds(const Value& step, const char* name) {
    const Value* found = step.find(name);
    return found == nullptr ? std::nullopt : std::optional(number(*found));
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
  [[nodiscard]] Value here(const Value& value) const {
    if (value.kind() == Value::Kind::list) {
      List all;
      for (const Value& element : value.list()) all.push_back(here(element));
      return all;
    }
    if (value.kind() != Value::Kind::string || !value.string().starts_with("$FOLDER")) return value;
    return Value(folder_ + value.string().substr(std::string("$FOLDER").size()));
  }
  [[nodiscard]] Future begin(const std::string& function, const Value& step) const {
    const Value arguments = here(field(step, "arguments"));
    const PoolView with = view(step);
    const std::string name = module_name + function;
    const List& given = arguments.list();
    if (given.empty()) return with.submit(name);
    return given.size() == 1 ? with.submit(name, given[0]) : with.submit(name, given[0], given[1]);
  }
  Value submit(const std::string& function, const Value& step) {
    futures_.insert_or_assign(field(step, "as").string(), begin(function, step));
    return {};
  }
  // The pool may notice that it is broken before the task is submitted, or after.
  Value submit_broken(const std::string& function, const Value& step) { return {{"is", begin(function, step).get()}}; }
  Value map(const std::string& function, const Value& step) {
    MapOptions options;
    if (const Value* size = step.find("chunk_size")) options.chunk_size = static_cast<std::size_t>(size->integer());
    options.timeout_s = seconds(step, "within");
    const bool star = step.find("star") != nullptr;  // which C++ has not: the item is a list
    const Value items = here(field(step, "items"));
    return {{"is", Value(view(step).map(module_name + function + (star ? "_pair" : ""), items.list(), options))}};
  }

  std::string folder_;
  Pool pool_;
  std::map<std::string, Future> futures_;
};

}  // namespace

int main(int argc, char** argv) {
  offer_functions();
  init(argc, argv, {{"miniray.serve_calls", serve_calls}});
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
    Scenario running(cluster, scenario, folder);
    List outcomes;
    for (const Value& step : field(scenario, "steps").list()) outcomes.push_back(running.run(step));
    std::cout << write_json({{"name", field(scenario, "name")}, {"outcomes", Value(std::move(outcomes))}}) << std::endl;
  }
}
