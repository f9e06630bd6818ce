#include "tasks/task.hpp"

#include "calls/call_format.hpp"

namespace miniray {

Ending ending_of(const TaskOutcome& outcome) {
  if (outcome.kind == TaskOutcome::Kind::cancelled) return Ending::cancelled;
  if (outcome.kind != TaskOutcome::Kind::reply) return Ending::failed;
  const ReplyVerb verb = reply_verb(outcome.reply);
  const bool has_value = verb == ReplyVerb::value || verb == ReplyVerb::values || verb == ReplyVerb::pickle;
  return has_value ? Ending::done : Ending::failed;
}

bool may_be_tried_again(const TaskOutcome& outcome) {
  const bool raised = outcome.kind == TaskOutcome::Kind::reply && ending_of(outcome) == Ending::failed;
  return (raised || outcome.kind == TaskOutcome::Kind::timed_out) && outcome.task.tries < outcome.task.terms->retries;
}

}  // namespace miniray
