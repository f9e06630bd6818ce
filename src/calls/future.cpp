#include "miniray/future.hpp"

#include "base/check.hpp"

namespace miniray {

Value& PendingResult::outcome() {
  MINIRAY_CHECK(done(), function);
  if (failure_) std::rethrow_exception(failure_);
  return value_;
}

void PendingResult::notify(std::function<void()> callback) {
  {
    const std::scoped_lock lock(mutex_);
    if (!done()) return callbacks_.push_back(std::move(callback));
  }
  callback();
}

bool PendingResult::settle(Value value, std::exception_ptr failure, Callbacks& callbacks) {
  const std::scoped_lock lock(mutex_);
  if (done()) return false;
  value_ = std::move(value);
  failure_ = std::move(failure);
  callbacks = std::exchange(callbacks_, {});
  done_.store(true, std::memory_order_release);
  return true;
}

void run(const Callbacks& callbacks) {
  std::exception_ptr thrown;
  for (const auto& callback : callbacks) {
    try {
      callback();
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

bool FutureBase::ready() const {
  if (!pending_->done()) pending_->look();
  return pending_->done();
}

bool FutureBase::cancel() const {
  if (ready()) return false;
  pending_->cancel();
  return true;
}

Value& FutureBase::outcome(std::optional<double> timeout_s) const {
  if (!wait(timeout_s))
    throw TimeoutError(pending_->describe_wait() + " after " + Value(*timeout_s).text() +
                       " s; it goes on, and its result is not lost");
  return pending_->outcome();
}

void wrong_result(const std::string& function, const std::string& wanted, const std::exception& why) {
  const std::string asked = function + " was asked for " + wanted + ", and ";
  if (const auto* mismatch = dynamic_cast<const Mismatch*>(&why))
    throw ValueError(asked + (mismatch->place().empty() ? "" : mismatch->place() + " of ") + "its result " +
                     mismatch->found());
  throw ValueError(asked + "its result cannot be converted: " + why.what());
}

}  // namespace miniray
