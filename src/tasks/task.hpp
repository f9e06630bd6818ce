// A task: an encoded call that waits for a worker, what it needs, and its outcome.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "miniray/error.hpp"
#include "miniray/message.hpp"
#include "tasks/large_buffers.hpp"
#include "tasks/resources.hpp"

namespace miniray {

/// A function that tasks call by its number, or something else that they refer to: a class, a global of the script. A
/// worker gets its definition before the first task that refers to it.
struct TaskFunction {
  std::int64_t number = 0;
  Message definition;         ///< a call "define", without a reply
  std::string name = {};      ///< for people
  std::string slot = {};      ///< names the global whose value this is. A worker has one value of a slot at a time
  std::int64_t revision = 0;  ///< counts the definitions that replaced the first
  bool by_value = false;
  bool asked_for = false;  ///< a worker does not know it by name, and its value is on the way
  /// What a worker has to know first, of a function that was redefined by value. Functions may need each other. The
  /// function itself is among them: what comes after it is needed only when it runs.
  std::vector<std::weak_ptr<TaskFunction>> needs = {};
};
/// What a worker has to know first, in this order. Tasks share it. Only the engine's thread reads or changes it: when a
/// worker asks for the value of something, what that value needs is added.
using TaskNeeds = std::vector<std::shared_ptr<TaskFunction>>;

/// The options of a task, checked. Tasks share them.
struct TaskTerms {
  Demand demand = {};
  std::optional<double> timeout_s = {};  ///< how long it may run
  int retries = 0;                       ///< how often it is tried again after the death of its worker
  std::optional<std::uint64_t> memory_bytes = {};
};

struct Task {
  std::int64_t number = 0;  ///< also that of its call; never 0
  Message call;
  std::shared_ptr<TaskFunction> function;
  std::shared_ptr<const TaskNeeds> needs = {};                 ///< of its function; null: nothing
  std::shared_ptr<const TaskNeeds> argument_needs = {};        ///< of its arguments, after those; null: nothing
  std::vector<std::shared_ptr<const LargeBuffer>> large = {};  ///< those of its buffers that have a place, in order
  std::shared_ptr<const TaskTerms> terms;
  void* owner = nullptr;               ///< comes back with the outcome
  bool of_map = false;                 ///< a chunk of a map, which counts its items itself
  int tries = 0;                       ///< how often it has begun and failed, as far as is known
  int times_missing = 0;               ///< how often a worker lacked something that it needs
  std::int64_t definitions_given = 0;  ///< how many functions had been redefined when its worker got it

  void for_each_need(const auto& visit) const {
    for (const TaskNeeds* all : {needs.get(), argument_needs.get()})
      if (all != nullptr)
        for (const std::shared_ptr<TaskFunction>& need : *all) visit(*need);
  }
};

/// The outcome of a task. Each task that was submitted has one.
struct TaskOutcome {
  enum class Kind : std::uint8_t {
    reply,      ///< its worker answered with a value, or with what the function raised
    died,       ///< it died with its worker, more often than its terms allow
    timed_out,  ///< it ran for too long, and its worker was ended
    cancelled,
    broken,  ///< no worker is left, and none will come
  };
  Kind kind = Kind::reply;
  Task task;
  Message reply;
  std::string worker;                           ///< the worker that had it last
  std::string text;                             ///< of timed_out, the stack; of broken, the reason
  std::optional<DeathCertificate> certificate;  ///< of died
};

/// What an outcome means to whoever submitted the task, in either language.
enum class Ending : std::uint8_t { done, failed, cancelled };
[[nodiscard]] Ending ending_of(const TaskOutcome& outcome);
/// Whether the task may be tried again, provided that its user wants that after such an error. (The engine itself tries
/// a task again whose worker died.)
[[nodiscard]] bool may_be_tried_again(const TaskOutcome& outcome);

}  // namespace miniray
