#include "calls/call_desk.hpp"

#include <vector>

#include "base/check.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

// In a handler: returns whether the exception says that the worker answers no more calls. Other errors concern only the
// call that waits.
bool is_end(Worker& worker) {
  try {
    throw;
  } catch (const WorkerDied&) {
    return true;
  } catch (const WorkerError&) {
    return true;
  } catch (const EndOfStream&) {
    return true;
  } catch (const ProtocolError&) {
    return true;
  } catch (const SystemError&) {
    return true;
  } catch (...) {
    return worker.channel().closed();  // for example after a reply that was too large: nothing after it can be read
  }
}

}  // namespace

// Only desks that are open, and the worker itself, hold its link.
CallDesk::CallDesk(Worker& worker) : link_(worker.link()) {
  if (link_.use_count() > 2)
    throw UsageError(worker.name() + " has a Caller already; use that one, or destroy it first");
}

Worker& CallDesk::worker() const {
  if (!link_) throw UsageError("the Caller that made this call is gone");
  if (link_->worker() == nullptr)
    throw UsageError(
        "the worker of this Caller has ended: its Worker object was destroyed, or another one was assigned to "
        "it. Make a Caller for the worker that there is");
  return *link_->worker();
}

bool CallDesk::is_under_way(std::int64_t number) const {
  const auto found = under_way_.find(number);
  return found != under_way_.end() && found->second.settler;
}

void CallDesk::send(const Message& call, Patience patience) {
  MINIRAY_CHECK(call.head.number > first_number_ && call.head.number <= last_number_, call.head.number, first_number_,
                last_number_);
  fail_lost();
  const int process = worker().replacements();
  try {
    if (patience == Patience::none)
      send_some(call);
    else
      run_waiting([&] { worker().send(call); });
  } catch (...) {
    // Replies that the worker sent before its end still count, unless its process has been replaced meanwhile.
    if (is_end(worker()) && worker().replacements() != process) on_end(process);
    throw;
  }
}

// A call of the worker that never waits notes its end, and leaves the recovery to the desk.
void CallDesk::send_some(const Message& call) {
  try {
    (void)worker().send_some(call);
  } catch (const Error&) {
    recover_if_ended();
    throw;
  }
}

// Throws what the caller gets after a recovery. Returns if there is nothing to recover.
void CallDesk::recover_if_ended() {
  Recovery* const recovery = worker().recovery();
  if (recovery != nullptr && recovery->pending()) run_waiting([&] { recovery->recover(worker()); });
}

void CallDesk::begin(const Message& call, std::shared_ptr<CallSettler> settler, Patience patience) {
  MINIRAY_CHECK(settler);
  send(call, patience);
  const bool added = under_way_.emplace(call.head.number, UnderWay{std::move(settler), worker().replacements()}).second;
  MINIRAY_CHECK(added, call.head.number);
}

Message CallDesk::ask(const Message& call) {
  send(call, Patience::wait);
  const int process = worker().replacements();
  try {
    while (true) {
      Message reply = receive(Deadline::never());
      if (reply.head.number == call.head.number) return reply;
      settle(reply);
    }
  } catch (...) {
    // The reply can still arrive, for example after an interrupt.
    if (!is_end(worker()) && worker().replacements() == process) under_way_[call.head.number] = {nullptr, process};
    throw;
  }
}

// The input is untrusted: a worker may send anything in the lane of calls.
void CallDesk::check(const Message& reply) const {
  if (reply.kind != Message::Kind::reply)
    throw ProtocolError(worker().name() + " made a call, and nobody answers calls here");
  (void)reply_verb(reply);
}

// Returns the next reply. If the worker has ended, fails its calls.
Message CallDesk::receive(const Deadline& deadline) {
  const int process = worker().replacements();
  try {
    std::optional<Message> reply;
    run_waiting([&] { reply = worker().receive({.timeout_s = deadline.seconds_left(), .lane = Lane::calls}); });
    check(*reply);
    return std::move(*reply);
  } catch (...) {
    if (is_end(worker())) on_end(process);
    throw;
  }
}

bool CallDesk::wait(std::int64_t number, const Deadline& deadline) {
  fail_lost();
  while (is_under_way(number)) {
    try {
      settle(receive(deadline));
    } catch (const TimeoutError&) {
      if (deadline.passed()) return !is_under_way(number);
    } catch (const Error&) {
      if (is_under_way(number)) throw;  // otherwise the settler has the error
    }
  }
  return true;
}

void CallDesk::take_replies() {
  if (is_closed()) return;
  fail_lost();
  if (link_->worker() == nullptr) return;
  const int process = worker().replacements();
  try {
    while (std::optional<Message> reply = worker().try_receive({}, Lane::calls)) {
      check(*reply);
      settle(*reply);
      if (is_closed()) return;
    }
  } catch (const Error&) {
    if (!is_end(worker())) throw;
    const std::exception_ptr end = std::current_exception();
    try {
      recover_if_ended();
      std::rethrow_exception(end);
    } catch (const Error&) {
      on_end(process);
    }
  }
}

void CallDesk::settle(const Message& reply) {
  const auto found = under_way_.find(reply.head.number);
  if (found == under_way_.end()) {
    // A Caller that was destroyed may have made that call. Each call has one reply.
    if (reply.head.number > 0 && reply.head.number < first_number_ && ++late_replies_ < first_number_) return;
    const ProtocolError stray(worker().name() + " answered the call " + std::to_string(reply.head.number) +
                              ", which was not made here");
    fail([](const UnderWay&) { return true; }, std::make_exception_ptr(stray));
    throw ProtocolError(stray);
  }
  MINIRAY_CHECK(found->second.process <= worker().replacements(), reply.head.number, found->second.process);
  const std::shared_ptr<CallSettler> settler = std::move(found->second.settler);
  under_way_.erase(found);
  if (settler) settler->on_reply(reply);
}

// In a handler: a call of the worker has found that this process has ended.
void CallDesk::on_end(int process) {
  const int now = worker().replacements();
  MINIRAY_CHECK(process <= now, process, now);
  fail([=](const UnderWay& call) { return (call.process == now) == (now == process); }, std::current_exception());
}

template <class Which>
void CallDesk::fail(Which which, const std::exception_ptr& why) {
  std::vector<std::shared_ptr<CallSettler>> failed;
  std::erase_if(under_way_, [&](auto& entry) {
    if (!which(entry.second)) return false;
    if (entry.second.settler) failed.push_back(std::move(entry.second.settler));
    return true;
  });
  std::exception_ptr thrown;
  for (const std::shared_ptr<CallSettler>& settler : failed) {
    try {
      settler->on_failure(why);
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

// The calls of a Worker object that is gone, and of a process that was replaced by a call that is not the desk's, such
// as recv(). During a recovery the worker has no Recovery, and its result is not known yet.
void CallDesk::fail_lost() {
  if (under_way_.empty()) return;
  MINIRAY_CHECK(link_, under_way_.size());  // close() leaves no call under way
  try {
    if (under_way_.begin()->second.process == worker().replacements()) return;
    Recovery* const recovery = worker().recovery();
    if (recovery == nullptr) return;
    recovery->tell(worker());
  } catch (const Error&) {
    fail([this](const UnderWay& call) { return link_->worker() == nullptr || call.process != worker().replacements(); },
         std::current_exception());
  }
}

void CallDesk::drop(std::int64_t number) {
  const auto found = under_way_.find(number);
  if (found == under_way_.end()) return;
  MINIRAY_CHECK(link_, number);  // close() leaves no call under way
  found->second.settler.reset();
  if (link_->worker() == nullptr || found->second.process != worker().replacements()) return;
  try {
    (void)worker().send_some(drop_message(number));
  } catch (const Error&) {
    if (!is_end(worker())) throw;  // otherwise all calls of this worker have ended with it
  }
}

void CallDesk::close(const std::exception_ptr& why) {
  if (is_closed()) return;
  const auto open = std::exchange(under_way_, {});
  link_ = nullptr;
  for (const auto& [number, call] : open)
    if (call.settler) call.settler->on_failure(why);
}

void CallDesk::check_invariants() const {
  MINIRAY_CHECK(link_ || under_way_.empty(), under_way_.size());
  MINIRAY_CHECK(first_number_ > 0 && first_number_ <= last_number_, first_number_, last_number_);
  int process = 0;
  for (const auto& [number, call] : under_way_) {
    MINIRAY_CHECK(number > first_number_ && number <= last_number_, number, first_number_, last_number_);
    MINIRAY_CHECK(call.process >= process, number, call.process, process);  // fail_lost() looks at the oldest call only
    process = call.process;
  }
  if (link_ && link_->worker() != nullptr)
    MINIRAY_CHECK(process <= link_->worker()->replacements(), process, link_->worker()->replacements());
}

namespace {

// While it lives, waiting for these channels is waiting for replies.
class LookForReplies {
 public:
  explicit LookForReplies(std::span<Channel* const> channels) : channels_(channels) {
    for (Channel* channel : channels_) channel->look_for(Lane::calls);
  }
  LookForReplies(const LookForReplies&) = delete;
  LookForReplies& operator=(const LookForReplies&) = delete;
  ~LookForReplies() {
    for (Channel* channel : channels_) {
      channel->look_for(Lane::messages);
      try {
        (void)channel->ready();  // so that the next wait_any sees messages that have come meanwhile
      } catch (const Error&) {
        // The next call on the channel throws it again.
      }
    }
  }

 private:
  std::span<Channel* const> channels_;
};

}  // namespace

void wait_for_replies(std::span<Worker* const> workers, std::optional<double> timeout_s) {
  std::vector<Channel*> channels;
  channels.reserve(workers.size());
  for (Worker* worker : workers) channels.push_back(&worker->channel());
  const LookForReplies look(channels);
  // Messages that came since the caller looked last are in the inbox, where poll() does not see them.
  bool there = false;
  for (Channel* channel : channels) there = channel->ready() || there;
  if (!there) (void)wait_any(std::span<Channel* const>(channels), timeout_s);
}

}  // namespace miniray
