#include "miniray/calls.hpp"

#include <algorithm>

#include "calls/call_desk.hpp"

namespace miniray {
namespace {

std::shared_ptr<PendingCall> begin_call(const std::shared_ptr<CallDesk>& desk, std::string function, CallVerb verb,
                                        const Value& body, std::size_t arguments_at,
                                        std::optional<std::size_t> items = {}) {
  auto call = std::make_shared<PendingCall>(desk, std::move(function));
  call->items = items;
  try {
    desk->begin(call, verb, body);
  } catch (const Unsendable& error) {
    unsendable_argument(call->function, body.at(arguments_at).list(), error);
  }
  desk->run_due();
  return call;
}

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
        (void)channel->ready();  // so that the next wait_any knows of messages that came meanwhile
      } catch (const Error&) {
        // It will be said to who uses the channel next.
      }
    }
  }

 private:
  std::span<Channel* const> channels_;
};

}  // namespace

CallError::CallError(const std::string& function, std::string worker, std::string type, std::string message,
                     std::string traceback)
    : Error(function + " in " + worker + " raised " + type + ": " + message +
            (traceback.empty() ? std::string() : "\n\nIn the worker:\n" + traceback)),
      worker_(std::move(worker)),
      type_(std::move(type)),
      message_(std::move(message)),
      traceback_(std::move(traceback)) {}

void wrong_result(const std::string& function, const std::string& wanted, const std::exception& why) {
  const std::string asked = function + " was asked for " + wanted + ", and ";
  if (const auto* mismatch = dynamic_cast<const Mismatch*>(&why))
    throw ValueError(asked + (mismatch->place().empty() ? "" : mismatch->place() + " of ") + "its result " +
                     mismatch->found());
  throw ValueError(asked + "its result cannot be converted: " + why.what());
}

bool CallFutureBase::wait(std::optional<double> timeout_s) const {
  return call_->done || call_->desk->wait(*call_, Deadline::in_seconds(timeout_s));
}

bool CallFutureBase::ready() const {
  if (!call_->done) call_->desk->take_replies();
  call_->desk->run_due();
  return call_->done;
}

bool CallFutureBase::cancel() const {
  if (ready()) return false;
  call_->desk->cancel(*call_);
  call_->desk->run_due();
  return true;
}

const Value& CallFutureBase::result(std::optional<double> timeout_s) const {
  if (!wait(timeout_s))
    throw TimeoutError(call_->desk->worker().name() + " has not answered the call of " + call_->function + " within " +
                       std::to_string(*timeout_s) + " s; the call goes on, and its result is not lost");
  if (call_->failure) std::rethrow_exception(call_->failure);
  return call_->value;
}

Value CallFutureBase::take_result() const {
  (void)result({});
  return std::move(call_->value);
}

const std::string& CallFutureBase::function() const { return call_->function; }

void CallFutureBase::notify(std::function<void()> callback) const {
  call_->desk->add_callback(*call_, std::move(callback));
  call_->desk->run_due();
}

Caller::Caller(Worker& worker) : desk_(std::make_shared<CallDesk>(worker)) {}
Caller::Caller(Caller&&) noexcept = default;
Caller& Caller::operator=(Caller&& other) noexcept {
  if (this == &other) return *this;
  if (desk_) desk_->give_up();
  desk_ = std::move(other.desk_);
  return *this;
}
Caller::~Caller() {
  if (desk_) desk_->give_up();
}

std::shared_ptr<PendingCall> Caller::begin(std::string_view function, List arguments, Value keywords) {
  const Value body = call_body(function, std::move(arguments), std::move(keywords));
  return begin_call(desk_, std::string(function), CallVerb::call, body, 1);
}

std::shared_ptr<PendingCall> Caller::begin_create(std::string_view name, std::string_view class_name, List arguments,
                                                  Value keywords) {
  const Value body = create_body(name, function_named(class_name), std::move(arguments), std::move(keywords));
  return begin_call(desk_, std::string(class_name), CallVerb::create, body, 2);
}

List Caller::map_values(std::string_view function, List items) {
  std::vector<CallFuture<Value>> chunks;
  for (std::size_t first = 0; first < items.size(); first += limits::chunk_items_max) {
    const auto begin = items.begin() + static_cast<std::ptrdiff_t>(first);
    const std::size_t count = std::min(limits::chunk_items_max, items.size() - first);
    const Value body = map_body(function, List(std::make_move_iterator(begin),
                                               std::make_move_iterator(begin + static_cast<std::ptrdiff_t>(count))));
    chunks.emplace_back(begin_call(desk_, std::string(function), CallVerb::map, body, 1, count));
  }
  List values;
  for (const CallFuture<Value>& chunk : chunks) {
    List results = std::move(chunk.take_result().list());
    std::ranges::move(results, std::back_inserter(values));
  }
  return values;
}

void Caller::forget(std::string_view name) {
  auto call = std::make_shared<PendingCall>(desk_, "forget " + std::string(name));
  desk_->begin(call, CallVerb::forget, Value(name));
  CallFuture<void>(std::move(call)).get();
}

std::size_t Caller::take_replies() {
  desk_->take_replies();
  desk_->run_due();
  return desk_->under_way();
}

Worker& Caller::worker() const { return desk_->worker(); }

std::vector<std::size_t> wait_any(std::span<const CallFutureBase* const> futures, std::optional<double> timeout_s) {
  if (futures.empty()) throw UsageError("wait_any was given nothing to wait for");
  const Deadline deadline = Deadline::in_seconds(timeout_s);
  std::vector<std::shared_ptr<CallDesk>> desks;
  for (const CallFutureBase* future : futures) desks.push_back(future->call_->desk);
  std::ranges::sort(desks);
  desks.erase(std::ranges::unique(desks).begin(), desks.end());
  std::vector<std::size_t> done;
  for (;;) {
    for (const auto& desk : desks) desk->take_replies();
    for (const auto& desk : desks) desk->run_due();
    for (std::size_t i = 0; i < futures.size(); ++i) {
      if (futures[i]->call_->done) done.push_back(i);
    }
    if (!done.empty() || deadline.passed()) return done;
    std::vector<Channel*> channels;
    for (const auto& desk : desks) channels.push_back(&desk->worker().channel());
    const LookForReplies look(channels);
    // What came between the last look and this one is in the inbox, of which the wait must be told.
    bool there = false;
    for (Channel* channel : channels) there = channel->ready() || there;
    if (!there) (void)wait_any(std::span<Channel* const>(channels), deadline.seconds_left());
  }
}

}  // namespace miniray
