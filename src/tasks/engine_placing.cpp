// The engine's part that gives tasks to workers.
#include <algorithm>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "calls/call_format.hpp"
#include "miniray/error.hpp"
#include "tasks/engine.hpp"

namespace miniray {

void TaskEngine::dispatch() {
  if (queue_.size() == 0) return;
  for (Node& node : nodes_) node.resources.clear_spoken_for();
  for (TaskLine* line : queue_.waiting()) {
    while (!line->empty() && (place(*line) || place_behind(*line))) {
    }
    if (!line->empty()) reserve_for(*line);
  }
}

// Reserves room for the first task of a line that waits. If no worker will come that could run it, ends the line's
// tasks.
void TaskEngine::reserve_for(TaskLine& line) {
  Node* best = nullptr;
  const Node* broken_for = nullptr;
  bool may_come = false;
  for (Node& node : nodes_) {
    if (!line.demand.node.empty() && node.name != line.demand.node) continue;
    if (!node.resources.could_ever_fit(line.demand)) continue;
    if (node.broken_for.empty())
      may_come = true;
    else
      broken_for = &node;
    if (node.members == 0) continue;
    if (best == nullptr || node.resources.free_share() > best->resources.free_share()) best = &node;
  }
  if (best != nullptr) best->resources.speak_for(line.demand);
  if (may_come || broken_for == nullptr) return;
  while (!line.empty()) {
    Task task = queue_.take_first(line);
    finish({TaskOutcome::Kind::broken, std::move(task), {}, {}, broken_for->broken_for, {}});
  }
}

Member* TaskEngine::idle_member(const TaskLine& line) {
  Member* best = nullptr;
  // A process keeps the GPUs that it was shown first. One that was shown none can still be shown any, so it is saved
  // for tasks with GPUs. One that was shown other GPUs than these has to be replaced.
  const auto aptness = [&](const Member& member) {
    if (member.visible_gpus.empty()) return 1;
    const Node& node = nodes_[member.node()];
    if (line.demand.gpus == 0) return 2;
    return visible_names(node, node.resources.gpus_for(line.demand)) == member.visible_gpus ? 2 : 0;
  };
  const auto score = [&](const Member& member) {
    const double free = nodes_[member.node()].resources.free_share();
    const double wish = line.demand.strategy == Strategy::spread ? free : -free;
    return std::pair(wish, aptness(member));
  };
  for (Member& member : members_) {
    if (!member.idle()) continue;
    const Node& node = nodes_[member.node()];
    if (!line.demand.node.empty() && node.name != line.demand.node) continue;
    if (!node.resources.fits(line.demand)) continue;
    if (node.expects_fresh_worker && aptness(member) == 0) continue;  // one is replaced at a time
    if (best == nullptr || score(member) > score(*best)) best = &member;
  }
  return best;
}

bool TaskEngine::place(TaskLine& line) {
  Member* const member = idle_member(line);
  if (member == nullptr) return false;
  MINIRAY_CHECK(member->idle() && !member->holds, member->state, member->task_count());
  member->holds = line.demand;
  member->held_gpus = nodes_[member->node()].resources.take(line.demand);
  if (!show_gpus(*member)) {
    give_back_resources(*member);
    return true;  // it is being replaced; another worker may take the task
  }
  Task task = queue_.take_first(line);
  if (!give(*member, task, 0)) give_back_resources(*member);
  return true;
}

bool TaskEngine::place_behind(TaskLine& line) {
  const std::size_t ahead = line.tasks_ahead();
  if (ahead == 0) return false;
  Member* best = nullptr;
  for (Member& member : members_) {
    if (member.state != Member::State::ready || member.task_count() == 0 || member.task_count() > ahead) continue;
    if (member.holds_up()) continue;
    if (best != nullptr && member.task_count() >= best->task_count()) continue;
    // On another machine, whose clock differs, a task that is taken back may begin all the same.
    if (!member.shares_clock() && line.first().terms->retries == 0) continue;
    if (nodes_[member.node()].resources.is_spoken_for() || member.holds != line.demand) continue;
    best = &member;
  }
  if (best == nullptr) return false;
  Task task = queue_.take_first(line);
  give(*best, task, limits::task_lease_ms * 1'000'000LL);
  return true;
}

void TaskEngine::set_link(std::size_t node, Channel link) {
  MINIRAY_CHECK(node < nodes_.size(), node, nodes_.size());
  nodes_[node].link = std::make_unique<Channel>(std::move(link));
  members_changed_ = true;
}

// Sends a buffer over the node's link to all of its workers that do not have it yet.
void TaskEngine::supply(std::size_t node, const LargeBuffer& large) {
  MINIRAY_CHECK(nodes_[node].link, node);
  // The cluster's own broadcasts have numbers from 1.
  constexpr std::uint64_t first_number = std::uint64_t{1} << 40;
  const std::uint64_t number = first_number + ++last_supply_;
  std::vector<Member*> there;
  List pids;
  for (Member& member : members_) {
    if (member.node() != node || member.state == Member::State::ending || member.keeps(large.number)) continue;
    there.push_back(&member);
    pids.emplace_back(static_cast<std::int64_t>(member.worker().pid()));
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(large.buffer.data);
  try {
    const Value supplied{{"numbers", Value::list({number})},
                         {"workers", Value(std::move(pids))},
                         {"buffers", Value::list({Array::view(std::span(data, large.buffer.size))})}};
    (void)nodes_[node].link->send_some(encode(supplied));
  } catch (const Error&) {  // then each worker gets its own copy
    nodes_[node].link.reset();
    members_changed_ = true;
    return;
  }
  for (Member* member : there) {
    try {
      member->send_keep(large, number);
    } catch (const Error&) {  // its end will be noticed
    }
  }
}

bool TaskEngine::give(Member& member, Task& task, std::int64_t lease_ns) {
  if (const std::int64_t awaited = awaited_by(task); awaited != 0) {
    park(std::move(task), awaited);
    return false;
  }
  try {
    for (const std::shared_ptr<const LargeBuffer>& large : task.large) {
      const Node& node = nodes_[member.node()];
      if (!member.keeps(large->number) && node.link && node.members > 1) supply(member.node(), *large);
    }
    task.definitions_given = static_cast<std::int64_t>(redefined_.size());
    member.give(task, lease_ns);
    return true;
  } catch (const MessageTooLarge& error) {  // it cannot be sent to any worker
    Message reply = reply_message(ReplyVerb::error, error_body({"miniray::MessageTooLarge", error.what(), ""}));
    reply.head.number = task.number;
    finish({TaskOutcome::Kind::reply, std::move(task), std::move(reply), member.worker().name(), {}, {}});
  } catch (const Error&) {  // its end will be noticed; the task has not gone out
    member.state = Member::State::ending;
    member.ending_since_ns = now_ns();
    put_back(std::move(task));
  }
  return false;
}

std::string TaskEngine::visible_names(const Node& node, const std::vector<std::size_t>& gpus) {
  std::string names;
  for (const std::size_t gpu : gpus)
    names += (names.empty() ? "" : ",") + (gpu < node.gpu_names.size() ? node.gpu_names[gpu] : std::to_string(gpu));
  return names;
}

bool TaskEngine::show_gpus(Member& member) {
  if (member.held_gpus.empty()) return true;
  const std::string visible = visible_names(nodes_[member.node()], member.held_gpus);
  if (member.visible_gpus == visible) return true;
  if (!member.visible_gpus.empty()) {
    nodes_[member.node()].expects_fresh_worker = true;
    end_member(member, "it has had other GPUs than the next task shall have");
    return false;
  }
  member.visible_gpus = visible;
  try {
    const Value variables{{"CUDA_VISIBLE_DEVICES", visible}};
    (void)member.worker().send_some(call_message(CallVerb::environment, variables));
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace miniray
