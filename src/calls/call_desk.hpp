// A CallDesk sends calls to one worker and receives the replies. It works on encoded messages and is the same for every
// language: a language encodes the call, and passes a settler that gets the encoded reply.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "base/clock.hpp"
#include "calls/call_format.hpp"
#include "miniray/message.hpp"
#include "miniray/worker.hpp"

namespace miniray {

/// Gets the outcome of one call: one of these functions is called, once, unless the call is cancelled.
class CallSettler {
 public:
  CallSettler() = default;
  CallSettler(const CallSettler&) = delete;
  CallSettler& operator=(const CallSettler&) = delete;
  virtual ~CallSettler() = default;
  /// The worker has answered. The verb of the reply is valid; its body is not checked yet.
  virtual void on_reply(const Message& reply) = 0;
  /// The worker has ended or was replaced before it answered, or the desk was closed.
  virtual void on_failure(const std::exception_ptr& why) = 0;
};

/// A worker has one desk at a time, and one thread at a time may use it. If a settler throws, the desk's call throws
/// the same exception after it has called all other settlers.
class CallDesk {
 public:
  /// Throws UsageError if the worker has a desk that is not closed.
  explicit CallDesk(Worker& worker);
  CallDesk(const CallDesk&) = delete;
  CallDesk& operator=(const CallDesk&) = delete;
  virtual ~CallDesk() = default;

  /// Throws UsageError after close(), and if the Worker object is gone.
  [[nodiscard]] Worker& worker() const;
  /// Returns the number that the head of the next call has to have.
  [[nodiscard]] std::int64_t next_number() { return last_number_ = next_call_number(); }

  enum class Patience : std::uint8_t {
    wait,
    none,  ///< bytes that the kernel does not take at once are sent while a later call waits for a reply; only the
           ///< recovery of a worker that has ended is waited for
  };
  /// Sends a call, and keeps its settler until the call is settled or dropped. If it throws, the call was not made.
  void begin(const Message& call, std::shared_ptr<CallSettler> settler, Patience patience = Patience::wait);
  /// Sends a call and waits for its reply. Throws what ended the worker, if there is no reply.
  [[nodiscard]] Message ask(const Message& call);
  /// Waits until the call is settled. Returns false if the deadline passes before.
  bool wait(std::int64_t number, const Deadline& deadline);
  [[nodiscard]] bool is_under_way(std::int64_t number) const;
  /// Settles the calls whose replies have arrived. Waits only for the recovery of a worker that has ended.
  void take_replies();
  /// Cancels a call: its settler is not called, and if the worker has not begun the call, it never will.
  void drop(std::int64_t number);
  /// Fails the calls that are under way, and stops using the worker.
  void close(const std::exception_ptr& why);
  [[nodiscard]] bool is_closed() const { return link_ == nullptr; }
  /// Returns how many replies will still arrive.
  [[nodiscard]] std::size_t under_way() const { return under_way_.size(); }
  /// For tests. Walks all that the desk keeps, and aborts if parts of it contradict each other, which is our bug.
  void check_invariants() const;

 protected:
  /// Runs a step that may wait for the worker. Python gives up its lock meanwhile.
  virtual void run_waiting(const std::function<void()>& step) { step(); }

 private:
  struct UnderWay {
    std::shared_ptr<CallSettler> settler;  // null if the call was dropped
    int process;                           // how often the worker's process had been replaced when the call was sent
  };

  void send(const Message& call, Patience patience);
  void send_some(const Message& call);
  void recover_if_ended();
  void check(const Message& reply) const;
  Message receive(const Deadline& deadline);
  void settle(const Message& reply);
  template <class Which>
  void fail(Which which, const std::exception_ptr& why);
  void on_end(int process);
  void fail_lost();

  std::shared_ptr<const WorkerLink> link_;                // null when the desk is closed
  const std::int64_t first_number_ = next_call_number();  // lower numbers are calls of earlier desks
  std::int64_t last_number_ = first_number_;
  std::int64_t late_replies_ = 0;  // to calls of earlier desks
  std::map<std::int64_t, UnderWay> under_way_;
};

/// Waits until one of the workers may have sent a reply or has ended, or until the deadline.
void wait_for_replies(std::span<Worker* const> workers, std::optional<double> timeout_s);

}  // namespace miniray
