// What must hold in an engine between two of its steps. The tests walk it after each.
#include <map>

#include "base/check.hpp"
#include "tasks/engine.hpp"

namespace miniray {
namespace {

// Where tasks are. None is in two places, or twice in one.
class Places {
 public:
  void add(std::int64_t number, const char* place) {
    const auto [before, is_new] = places_.try_emplace(number, place);
    MINIRAY_CHECK(number > 0 && is_new, number, before->second, place);
  }

 private:
  std::map<std::int64_t, const char*> places_;
};

}  // namespace

void TaskEngine::check_invariants() const {
  queue_.check_invariants();
  check_members();
  check_tasks();
  check_watched();
  wait_set_.check_invariants();
}

// The nodes count their members, and have given to them what they have not got any more.
void TaskEngine::check_members() const {
  std::vector<std::size_t> counted(nodes_.size());
  std::vector<std::vector<NodeResources::Held>> held(nodes_.size());
  for (const Member& member : members_) {
    member.check_invariants();
    MINIRAY_CHECK(member.node() < nodes_.size(), member.node(), nodes_.size());
    ++counted[member.node()];
    if (member.holds) held[member.node()].push_back({&*member.holds, &member.held_gpus});
  }
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    MINIRAY_CHECK(counted[node] == nodes_[node].members, node, counted[node], nodes_[node].members);
    MINIRAY_CHECK(nodes_[node].members == 0 || nodes_[node].broken_for.empty(), node, nodes_[node].broken_for);
    nodes_[node].resources.check_invariants(held[node]);
  }
}

void TaskEngine::check_tasks() const {
  Places places;
  for (const std::int64_t number : queue_.numbers()) places.add(number, "the queue");
  for (const auto& [function, tasks] : parked_) {
    MINIRAY_CHECK(!tasks.empty(), function);
    for (const Task& task : tasks) {
      places.add(task.number, "those that wait for a function");
      // One that could go on would wait for ever.
      MINIRAY_CHECK(!task.function || task.function->number != function || awaited_by(task) != 0, task.number,
                    function);
    }
  }
  for (const Member& member : members_)
    for (const Task& task : member.tasks())
      if (task.number != member.condemned) places.add(task.number, "a worker");  // else its outcome is known
  for (const TaskOutcome& outcome : outcomes_) places.add(outcome.task.number, "the outcomes");
  MINIRAY_CHECK(!broken_ || (queue_.size() == 0 && parked_.empty()), queue_.size(), parked_.size());
  for (const auto& [function, before] : redefined_)
    MINIRAY_CHECK(before >= 0 && before < static_cast<std::int64_t>(redefined_.size()), function, before);
}

// What is waited for is what there is, unless that has changed since.
void TaskEngine::check_watched() const {
  if (members_changed_) return;
  MINIRAY_CHECK(by_channel_.size() == members_.size(), by_channel_.size(), members_.size());
  for (std::size_t i = 0; i < by_channel_.size(); ++i)
    MINIRAY_CHECK(channels_[i] == &by_channel_[i]->worker().channel(), i, by_channel_[i]->worker().name());
  std::size_t linked = 0;
  for (const Node& node : nodes_) linked += node.link ? 1 : 0;
  MINIRAY_CHECK(linked == linked_nodes_.size(), linked, linked_nodes_.size());
  for (const std::size_t node : linked_nodes_) MINIRAY_CHECK(nodes_[node].link, node);
}

}  // namespace miniray
