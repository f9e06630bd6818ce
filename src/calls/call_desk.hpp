// The inside of a Caller: the calls that are under way on one worker, and the replies as they come.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "calls/call_format.hpp"
#include "miniray/calls.hpp"
#include "miniray/worker.hpp"

namespace miniray {

/// Why the caller of this function gets no value out of the reply; nothing if it does.
[[nodiscard]] std::exception_ptr failure_in(CallReply& reply, const std::string& function, const std::string& worker);
/// Why a reply to a map of so many items holds no values; nothing if it does, but for items that failed.
[[nodiscard]] std::exception_ptr wrong_values(CallReply& reply, std::size_t items, const std::string& function,
                                              const std::string& worker);
/// What one of the items of a map raised.
[[nodiscard]] std::exception_ptr failure_of_item(CallFailure failure, const std::string& function,
                                                 const std::string& worker);
/// Says which argument cannot be sent, which the message's own error knows only by its place.
[[noreturn]] void unsendable_argument(const std::string& function, const List& arguments, const Unsendable& otherwise);

class PendingCall {
 public:
  PendingCall(std::shared_ptr<CallDesk> calling_desk, std::string function_name)
      : desk(std::move(calling_desk)), function(std::move(function_name)) {}

  std::shared_ptr<CallDesk> desk;
  std::string function;
  std::int64_t number = 0;
  std::optional<std::size_t> items = {};  // of a map
  bool done = false;                      // then there is a value or a failure
  Value value;
  std::exception_ptr failure;
  std::vector<std::function<void()>> callbacks;  // until it is done
};

class CallDesk {
 public:
  explicit CallDesk(Worker& worker) : worker_(&worker) {}

  [[nodiscard]] Worker& worker() const;
  /// Sends it. Nothing is under way if that throws.
  void begin(const std::shared_ptr<PendingCall>& call, CallVerb verb, const Value& body);
  /// Until this call is done; false when the deadline has passed.
  bool wait(const PendingCall& call, const Deadline& deadline);
  /// What is there; never waits. The end of the worker ends the calls that have no reply, and is no error here.
  void take_replies();
  void cancel(PendingCall& call);
  /// Calls the callbacks of calls that are done. Each is called once, whatever the others throw.
  void run_due();
  void add_callback(PendingCall& call, std::function<void()> callback);
  /// There will be no more replies, since nobody takes them.
  void give_up();
  [[nodiscard]] std::size_t under_way() const { return under_way_.size(); }

 private:
  template <class Receive>
  bool receive_with(Receive receive);
  void settle(const Message& message);
  void settle(PendingCall& call, CallReply reply);
  void finish(PendingCall& call);
  void fail_all(const std::exception_ptr& failure);

  Worker* worker_;  // none when it was given up
  std::int64_t last_number_ = 0;
  std::map<std::int64_t, std::shared_ptr<PendingCall>> under_way_;  // by number, cancelled ones included
  std::deque<std::function<void()>> due_;
};

}  // namespace miniray
