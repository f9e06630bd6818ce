#include "miniray/calls.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/shown_text.hpp"
#include "calls/call_desk.hpp"
#include "calls/call_failures.hpp"

namespace miniray {

namespace {

constexpr char all_calls = 0;  // its address is the group of every call
/// Waits until a call is done. Returns the positions of all that are done; none if the deadline passes first.
std::vector<std::size_t> wait_for_calls(std::span<const std::shared_ptr<Pending>> calls, const Deadline& deadline);

}  // namespace

/// The C++ side of a call.
class PendingCall : public PendingResult, public CallSettler {
 public:
  PendingCall(std::shared_ptr<CallDesk> calling_desk, const std::string& function_name,
              std::optional<std::size_t> item_count)
      : PendingResult(std::string(detail::spoken_name(function_name))),
        desk(std::move(calling_desk)),
        items(item_count) {}

  bool wait(std::optional<double> timeout_s) override { return desk->wait(number, Deadline::in_seconds(timeout_s)); }
  void look() override { desk->take_replies(); }
  void cancel() override {
    desk->drop(number);
    on_failure(std::make_exception_ptr(Cancelled("the call of " + function + " was cancelled")));
  }
  [[nodiscard]] std::string describe_wait() const override {
    return desk->worker().name() + " has not answered the call of " + function;
  }

  // All calls can be waited for together, whatever their workers.
  [[nodiscard]] const void* group() const override { return &all_calls; }
  void wait_any(std::span<const std::shared_ptr<Pending>> group, std::optional<double> timeout_s) override {
    (void)wait_for_calls(group, Deadline::in_seconds(timeout_s));
  }

  void on_reply(const Message& message) override {
    CallReply reply;
    std::exception_ptr failure;
    try {
      reply = parse_reply(message);
      failure = failure_of(reply);
    } catch (const std::exception&) {  // the body is not a valid reply, or there is no memory for it
      failure = std::current_exception();
    }
    finish(std::move(reply.value), failure);
  }
  void on_failure(const std::exception_ptr& why) override { finish({}, why); }

  const std::shared_ptr<CallDesk> desk;
  const std::optional<std::size_t> items;  // of a map
  std::int64_t number = 0;

 private:
  std::exception_ptr failure_of(CallReply& reply) const {
    const std::string& worker = desk->worker().name();
    std::exception_ptr found = failure_in(reply, function, worker);
    if (items && !found) found = wrong_values(reply, *items, function, worker);
    if (items && !found && !reply.failures.empty())
      found = failure_of_item(std::move(reply.failures.front().second), function, worker);
    return found;
  }

  // If the Caller was destroyed, callbacks are not called.
  void finish(Value value, std::exception_ptr failure) {
    Callbacks callbacks;
    const bool settled = settle(std::move(value), std::move(failure), callbacks);
    MINIRAY_CHECK(settled && number > 0, number, function);
    if (!desk->is_closed()) run(callbacks);
  }
};

namespace {

// `arguments_at` is the position of the arguments in the body, if it has any.
std::shared_ptr<PendingCall> begin_call(const std::shared_ptr<CallDesk>& desk, const std::string& function,
                                        CallVerb verb, const Value& body, std::optional<std::size_t> arguments_at,
                                        std::optional<std::size_t> items = {}) {
  auto call = std::make_shared<PendingCall>(desk, function, items);
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
    : Error(function + " in " + worker + " raised " + shown(type, Colours::escape) + ": " +
            shown(message, Colours::escape) +
            (traceback.empty() ? std::string() : "\n\nIn the worker:\n" + shown(traceback, Colours::escape))),
      worker_(std::move(worker)),
      type_(std::move(type)),
      message_(std::move(message)),
      traceback_(std::move(traceback)) {}

CallFutureBase::CallFutureBase(std::shared_ptr<PendingCall> call) : RemoteFutureBase(std::move(call)) {}

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

const std::shared_ptr<CallDesk>& Caller::desk() const {
  if (!desk_) throw_moved_from("Caller");
  return desk_;
}

std::shared_ptr<PendingCall> Caller::begin(std::string_view function, List arguments, Value keywords) {
  const Value body = call_body(function, std::move(arguments), std::move(keywords));
  return begin_call(desk(), std::string(function), CallVerb::call, body, 1);
}

std::shared_ptr<PendingCall> Caller::begin_create(std::string_view name, std::string_view class_name, List arguments,
                                                  Value keywords) {
  const Value body = create_body(name, function_named(class_name), std::move(arguments), std::move(keywords));
  return begin_call(desk(), std::string(class_name), CallVerb::create, body, 2);
}

List Caller::map_values(std::string_view function, List items) {
  std::vector<std::shared_ptr<PendingCall>> chunks;
  for (std::size_t first = 0; first < items.size(); first += limits::chunk_items_max) {
    const auto begin = items.begin() + static_cast<std::ptrdiff_t>(first);
    const std::size_t count = std::min(limits::chunk_items_max, items.size() - first);
    const Value body = map_body(function, List(std::make_move_iterator(begin),
                                               std::make_move_iterator(begin + static_cast<std::ptrdiff_t>(count))));
    chunks.push_back(begin_call(desk(), std::string(function), CallVerb::map, body, 1, count));
  }
  List values;
  for (const std::shared_ptr<PendingCall>& chunk : chunks)
    std::ranges::move(take_result(chunk).list(), std::back_inserter(values));
  return values;
}

Value Caller::take_result(const std::shared_ptr<PendingCall>& call) {
  (void)call->wait({});
  return std::move(call->outcome());
}

void Caller::forget(std::string_view name) {
  const Value body(name);
  CallFuture<void>(begin_call(desk(), "forget " + std::string(name), CallVerb::forget, body, {})).get();
}

std::size_t Caller::take_replies() {
  const std::shared_ptr<CallDesk> kept = desk();  // a callback may destroy this Caller
  kept->take_replies();
  return kept->under_way();
}

Worker& Caller::worker() const { return desk()->worker(); }

namespace {

std::vector<std::size_t> wait_for_calls(std::span<const std::shared_ptr<Pending>> calls, const Deadline& deadline) {
  std::vector<std::shared_ptr<CallDesk>> desks;
  for (const std::shared_ptr<Pending>& call : calls) desks.push_back(static_cast<const PendingCall&>(*call).desk);
  std::ranges::sort(desks);
  desks.erase(std::ranges::unique(desks).begin(), desks.end());
  std::vector<std::size_t> done;
  while (true) {
    for (const std::shared_ptr<CallDesk>& desk : desks) desk->take_replies();
    for (std::size_t i = 0; i < calls.size(); ++i)
      if (calls[i]->done()) done.push_back(i);
    if (!done.empty() || deadline.passed()) return done;
    std::vector<Worker*> workers;
    for (const std::shared_ptr<CallDesk>& desk : desks) workers.push_back(&desk->worker());
    wait_for_replies(workers, deadline.seconds_left());
  }
}

}  // namespace

std::vector<std::size_t> wait_any(std::span<const CallFutureBase* const> futures, Timeout timeout_s) {
  if (futures.empty()) throw UsageError("wait_any was given nothing to wait for");
  std::vector<std::shared_ptr<Pending>> calls;
  for (const CallFutureBase* future : futures) calls.push_back(future->pending());
  return wait_for_calls(calls, Deadline::in_seconds(timeout_s));
}

}  // namespace miniray
