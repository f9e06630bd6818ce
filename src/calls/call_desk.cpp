#include "calls/call_desk.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "miniray/error.hpp"

namespace miniray {

void unsendable_argument(const std::string& function, const List& arguments, const Unsendable& otherwise) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    try {
      (void)encode(arguments[i]);
    } catch (const Unsendable& error) {
      throw Unsendable("argument " + std::to_string(i + 1) + " of " + function + ": " + error.what());
    }
  }
  throw Unsendable(otherwise);
}

std::exception_ptr failure_in(CallReply& reply, const std::string& function, const std::string& worker) {
  switch (reply.verb) {
    case ReplyVerb::value:
    case ReplyVerb::values:
      return {};
    case ReplyVerb::dropped:
      return std::make_exception_ptr(Cancelled("the call of " + function + " was dropped by " + worker));
    case ReplyVerb::error:
    case ReplyVerb::unknown: {
      CallFailure& failure = reply.failure;
      if (failure.type == out_of_memory_type || failure.type == out_of_memory_type_in_python)
        return std::make_exception_ptr(TaskOutOfMemory(function, worker, std::move(failure.type),
                                                       std::move(failure.message), std::move(failure.traceback)));
      return std::make_exception_ptr(CallError(function, worker, std::move(failure.type), std::move(failure.message),
                                               std::move(failure.traceback)));
    }
    case ReplyVerb::pickle:
      break;
  }
  return std::make_exception_ptr(
      CallError(function, worker, "TypeError",
                "the result is one that only Python can read. Have the function return plain data: numbers, strings, "
                "bytes, lists, dicts, arrays",
                ""));
}

std::exception_ptr wrong_values(CallReply& reply, std::size_t items, const std::string& function,
                                const std::string& worker) {
  if (reply.value.kind() == Value::Kind::map) {  // from Python
    reply.verb = ReplyVerb::pickle;
    return failure_in(reply, function, worker);
  }
  const bool right = reply.verb == ReplyVerb::values && reply.value.kind() == Value::Kind::list &&
                     reply.value.list().size() == items &&
                     std::ranges::all_of(reply.failures, [&](const auto& failed) { return failed.first < items; });
  if (right) return {};
  return std::make_exception_ptr(ProtocolError(worker + " answered a map of " + function + " with something else"));
}

std::exception_ptr failure_of_item(CallFailure failure, const std::string& function, const std::string& worker) {
  CallReply of_item;
  of_item.verb = ReplyVerb::error;
  of_item.failure = std::move(failure);
  return failure_in(of_item, function, worker);
}

Worker& CallDesk::worker() const {
  if (worker_ == nullptr) throw UsageError("the Caller that made this call is gone");
  return *worker_;
}

void CallDesk::begin(const std::shared_ptr<PendingCall>& call, CallVerb verb, const Value& body) {
  MINIRAY_CHECK(call->number == 0 && !call->done && call->desk.get() == this, call->number, call->function);
  const std::int64_t number = ++last_number_;
  const pid_t asked = worker().pid();
  try {
    worker().send(call_message(verb, body, number, worker().channel().codec()));
  } catch (const Unsendable&) {
    throw;
  } catch (const Error&) {
    if (worker().pid() != asked)
      fail_all(std::current_exception());  // the process that has taken its place owes nothing
    take_replies();  // if the worker is gone, what it said before still counts, and the rest must hear of it
    throw;
  }
  call->number = number;
  const bool added = under_way_.emplace(number, call).second;
  MINIRAY_CHECK(added, number);
}

// True if something came. What ends the worker ends all its calls; anything else is for who waits.
template <class Receive>
bool CallDesk::receive_with(Receive receive) {
  try {
    const std::optional<Message> message = receive();
    if (!message) return false;
    settle(*message);
    return true;
  } catch (const TimeoutError&) {
    return false;
  } catch (const UsageError&) {  // another thread is at it, or this is another process
    throw;
  } catch (const Error&) {
    fail_all(std::current_exception());
    return false;
  }
}

bool CallDesk::wait(const PendingCall& call, const Deadline& deadline) {
  run_due();
  while (!call.done) {
    const bool came = receive_with([&]() -> std::optional<Message> {
      return worker().receive({.timeout_s = deadline.seconds_left(), .lane = Lane::calls});
    });
    run_due();
    if (!came && !call.done && deadline.passed()) return false;
  }
  return true;
}

void CallDesk::take_replies() {
  while (worker_ != nullptr && receive_with([&] { return worker_->try_receive({}, Lane::calls); })) {
  }
}

void CallDesk::settle(const Message& message) {
  const std::string& name = worker().name();
  if (message.kind != Message::Kind::reply) throw ProtocolError(name + " made a call, and nobody answers calls here");
  CallReply reply = parse_reply(message);
  const auto found = under_way_.find(message.head.number);
  if (found == under_way_.end())
    throw ProtocolError(name + " answered the call " + std::to_string(message.head.number) +
                        ", which was not made here. Does the worker have two Callers?");
  const std::shared_ptr<PendingCall> call = std::move(found->second);
  under_way_.erase(found);
  MINIRAY_CHECK(call->number == message.head.number, call->number, message.head.number);
  if (!call->done) settle(*call, std::move(reply));
}

void CallDesk::settle(PendingCall& call, CallReply reply) {
  const std::string& name = worker().name();
  call.failure = failure_in(reply, call.function, name);
  if (call.items && !call.failure) call.failure = wrong_values(reply, *call.items, call.function, name);
  if (call.items && !call.failure && !reply.failures.empty())
    call.failure = failure_of_item(std::move(reply.failures.front().second), call.function, name);
  if (!call.failure) call.value = std::move(reply.value);
  finish(call);
}

void CallDesk::finish(PendingCall& call) {
  MINIRAY_CHECK(!call.done && call.number > 0, call.number, call.function);  // each call is done once
  call.done = true;
  for (auto& callback : call.callbacks) due_.push_back(std::move(callback));
  call.callbacks.clear();
}

void CallDesk::fail_all(const std::exception_ptr& failure) {
  const auto failed = std::exchange(under_way_, {});
  for (const auto& [number, call] : failed) {
    if (call->done) continue;
    MINIRAY_CHECK(call->number == number, call->number, number);
    call->failure = failure;
    finish(*call);
  }
}

void CallDesk::cancel(PendingCall& call) {
  call.failure = std::make_exception_ptr(Cancelled("the call of " + call.function + " was cancelled"));
  finish(call);
  try {
    worker().send(drop_message(call.number));
  } catch (const Error&) {
    take_replies();  // the worker is gone, and so is the call
  }
}

void CallDesk::add_callback(PendingCall& call, std::function<void()> callback) {
  MINIRAY_CHECK(!call.done || call.callbacks.empty(), call.number, call.callbacks.size());
  if (call.done)
    due_.push_back(std::move(callback));
  else
    call.callbacks.push_back(std::move(callback));
}

void CallDesk::run_due() {
  while (!due_.empty()) {
    const std::function<void()> callback = std::move(due_.front());
    due_.pop_front();
    callback();
  }
}

void CallDesk::give_up() {
  MINIRAY_CHECK(worker_ != nullptr, under_way_.size());
  fail_all(std::make_exception_ptr(Cancelled("the Caller that made this call is gone")));
  due_.clear();
  worker_ = nullptr;
}

}  // namespace miniray
