// A task: an encoded call that waits for a worker, what it needs, and what becomes of it.
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
/// worker hears of it before the first of them comes.
struct TaskFunction {
  std::int64_t number = 0;
  Message definition;         ///< a call "define", without a reply
  std::string name = {};      ///< for people
  std::string slot = {};      ///< of a global: which. Of those with the same slot, a worker has one at a time
  std::int64_t revision = 0;  ///< a definition that replaces another has the next
  bool by_value = false;
  bool asked_for = false;  ///< a worker does not know it by name: its value is on the way
  /// What a worker has to hear of first, since it was redefined by value; functions may need each other. It has a
  /// place of its own among them: what comes after it is for when it runs. What tasks need besides is with them.
  std::vector<std::weak_ptr<TaskFunction>> needs = {};
};
/// What a worker has to hear of first, in this order. Tasks share it. Only the engine's thread reads or changes it:
/// when a worker asks for the value of something, what that value needs is added.
using TaskNeeds = std::vector<std::shared_ptr<TaskFunction>>;

/// What several tasks may have in common.
struct TaskTerms {
  Demand demand = {};
  std::optional<double> timeout_s = {};  ///< of running
  int retries = 0;                       ///< after the death of its worker
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
  int tries = 0;                       ///< that have begun, as far as is known
  int times_missing = 0;               ///< that a worker lacked something
  std::int64_t definitions_given = 0;  ///< how many had been redefined when it was given to its worker

  void for_each_need(const auto& visit) const {
    for (const TaskNeeds* all : {needs.get(), argument_needs.get()})
      if (all != nullptr)
        for (const std::shared_ptr<TaskFunction>& need : *all) visit(*need);
  }
};

/// What became of a task. Each that was submitted has one.
struct TaskOutcome {
  enum class Kind : std::uint8_t {
    reply,      ///< of a worker: a value, or what the function raised
    died,       ///< with its worker, more often than its terms allow
    timed_out,  ///< its worker was ended
    cancelled,
    broken,  ///< no worker is left, and none will come
  };
  Kind kind = Kind::reply;
  Task task;
  Message reply;
  std::string worker;                           ///< who had it last
  std::string text;                             ///< of timed_out and broken: what happened
  std::optional<DeathCertificate> certificate;  ///< of died
};

/// What an outcome means to whoever submitted the task, in either language.
enum class Ending : std::uint8_t { done, failed, cancelled };
[[nodiscard]] Ending ending_of(const TaskOutcome& outcome);
/// Whether the task may be tried again, provided that its user wants that after such an error. (The engine itself tries
/// a task again whose worker died.)
[[nodiscard]] bool may_be_tried_again(const TaskOutcome& outcome);

}  // namespace miniray
