#include "miniray/calls.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "calls/call_desk.hpp"
#include "calls/call_failures.hpp"

namespace miniray {

/// The C++ side of a call: its value or its failure, for the futures that share it.
class PendingCall : public CallSettler {
 public:
  PendingCall(std::shared_ptr<CallDesk> calling_desk, std::string function_name, std::optional<std::size_t> item_count)
      : desk(std::move(calling_desk)), function(std::move(function_name)), items(item_count) {}

  void on_reply(const Message& message) override {
    try {
      CallReply reply = parse_reply(message);
      failure = failure_of(reply);
      if (!failure) value = std::move(reply.value);
    } catch (const Error&) {  // its verb was right, and the rest is not what a worker should send
      failure = std::current_exception();
    }
    finish();
  }
  void on_failure(const std::exception_ptr& why) override {
    failure = why;
    if (desk->is_closed()) callbacks.clear();  // nobody waits for them
    finish();
  }

  const std::shared_ptr<CallDesk> desk;
  const std::string function;
  const std::optional<std::size_t> items;  // of a map
  std::int64_t number = 0;
  bool done = false;  // then there is a value or a failure
  Value value;
  std::exception_ptr failure;
  std::vector<std::function<void()>> callbacks;  // until it is done

 private:
  std::exception_ptr failure_of(CallReply& reply) const {
    const std::string& worker = desk->worker().name();
    std::exception_ptr found = failure_in(reply, function, worker);
    if (items && !found) found = wrong_values(reply, *items, function, worker);
    if (items && !found && !reply.failures.empty())
      found = failure_of_item(std::move(reply.failures.front().second), function, worker);
    return found;
  }

  // Each callback is called once, whatever the others throw.
  void finish() {
    MINIRAY_CHECK(!done && number > 0, number, function);
    done = true;
    std::exception_ptr thrown;
    for (const auto& callback : std::exchange(callbacks, {})) {
      try {
        callback();
      } catch (...) {
        if (!thrown) thrown = std::current_exception();
      }
    }
    if (thrown) std::rethrow_exception(thrown);
  }
};

namespace {

// `arguments_at`: where in the body the arguments are, if there are any.
std::shared_ptr<PendingCall> begin_call(const std::shared_ptr<CallDesk>& desk, std::string function, CallVerb verb,
                                        const Value& body, std::optional<std::size_t> arguments_at,
                                        std::optional<std::size_t> items = {}) {
  auto call = std::make_shared<PendingCall>(desk, std::move(function), items);
  call->number = desk->next_number();
  try {
    desk->begin(call_message(verb, body, call->number, desk->worker().channel().codec()), call);
  } catch (const Unsendable& error) {
    if (!arguments_at) throw;
    unsendable_argument(call->function, body.at(*arguments_at).list(), error);
  }
  return call;
}

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
  return call_->done || call_->desk->wait(call_->number, Deadline::in_seconds(timeout_s));
}

bool CallFutureBase::ready() const {
  if (!call_->done) call_->desk->take_replies();
  return call_->done;
}

bool CallFutureBase::cancel() const {
  if (ready()) return false;
  call_->desk->drop(call_->number);
  call_->on_failure(std::make_exception_ptr(Cancelled("the call of " + call_->function + " was cancelled")));
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
  if (call_->done)
    callback();
  else
    call_->callbacks.push_back(std::move(callback));
}

Caller::Caller(Worker& worker) : desk_(std::make_shared<CallDesk>(worker)) {}
Caller::Caller(Caller&&) noexcept = default;
Caller& Caller::operator=(Caller&& other) noexcept {
  if (this == &other) return *this;
  close();
  desk_ = std::move(other.desk_);
  return *this;
}
Caller::~Caller() { close(); }

void Caller::close() {
  if (desk_) desk_->close(std::make_exception_ptr(Cancelled("the Caller that made this call is gone")));
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
  const Value body(name);
  CallFuture<void>(begin_call(desk_, "forget " + std::string(name), CallVerb::forget, body, {})).get();
}

std::size_t Caller::take_replies() {
  desk_->take_replies();
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
  while (true) {
    for (const auto& desk : desks) desk->take_replies();
    for (std::size_t i = 0; i < futures.size(); ++i)
      if (futures[i]->call_->done) done.push_back(i);
    if (!done.empty() || deadline.passed()) return done;
    std::vector<Worker*> workers;
    for (const auto& desk : desks) workers.push_back(&desk->worker());
    wait_for_replies(workers, deadline.seconds_left());
  }
}

}  // namespace miniray
