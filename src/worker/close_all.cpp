#include "worker/close_all.hpp"

#include <poll.h>
#include <signal.h>

#include <algorithm>

#include "base/system.hpp"
#include "worker/worker_state.hpp"

namespace miniray {

Closer::Closer(Worker::State& worker, const CloseOptions& options) : left_{&worker}, options_(options) { worker.end(); }

Closer::Closer(std::span<Worker* const> workers, const CloseOptions& options) : options_(options) {
  for (Worker* worker : workers) {
    try {
      if (!worker->state_ || !worker->state_->is_ours()) continue;  // another has its process
      worker->state_->end();
      left_.push_back(worker->state_.get());
    } catch (const UsageError&) {  // another thread is using it
    }
  }
}

Closing Closer::how() const {
  return options_.urgency == nullptr ? options_.how : std::max(options_.how, options_.urgency->load());
}

// Finishes those that have ended. A moment after they were told to, workers that still send messages are cut off.
void Closer::look() {
  const bool cut = cut_at_.passed();
  std::erase_if(left_, [&](Worker::State* worker) {
    if (!worker->has_closed(cut)) return false;
    worker->finish_closing();
    return true;
  });
}

void Closer::wait(const Deadline& deadline) {
  const Closing before = begun_;
  while (look(), !left_.empty() && !deadline.passed() && how() == before) {
    std::vector<pollfd> watched;
    for (Worker::State* worker : left_) worker->watch(watched);
    int slice_ms = options_.urgency == nullptr ? limits::wait_slice_ms : limits::urgency_slice_ms;
    if (!cut_at_.passed()) slice_ms = cut_at_.poll_ms(slice_ms);
    (void)system::poll_many(watched, deadline.poll_ms(slice_ms));
    if (!left_.empty() && left_.front()->on_interrupt()) left_.front()->on_interrupt()();
  }
}

// SIGKILL is sure to end a process of this machine. From another one, news may never come.
bool Closer::some_can_be_killed() const {
  return std::ranges::any_of(left_, [](Worker::State* worker) { return worker->process().can_be_killed(); });
}

Deadline Closer::news_deadline() const {
  int news_ms = 0;
  for (Worker::State* worker : left_)
    if (!worker->process().can_be_killed()) news_ms = std::max(news_ms, worker->process().news_within_ms());
  if (begun_ != Closing::finish) news_ms = std::min(news_ms, 2 * limits::interrupt_grace_ms);
  return Deadline::in_ms(options_.news_within_ms.value_or(news_ms));
}

void Closer::wait_for_the_dead() {
  const Deadline news = news_deadline();
  begun_ = how();
  while (!left_.empty() && (some_can_be_killed() || !news.passed()))
    wait(Deadline::in_ms(news.passed() ? limits::wait_slice_ms : news.poll_ms(limits::wait_slice_ms)));
}

bool Closer::step() {
  look();
  if (!left_.empty() && !news_until_) {
    for (Worker::State* worker : left_) worker->kill(SIGKILL);
    news_until_ = news_deadline();
  }
  if (!left_.empty() && !some_can_be_killed() && news_until_->passed()) abandon();
  return left_.empty();
}

void Closer::run_stages() {
  begun_ = how();
  if (begun_ == Closing::finish) {
    wait(Deadline::in_seconds(options_.grace_s));
    if (how() > begun_) return run_stages();
  }
  if (begun_ == Closing::interrupt) {
    wait(cut_at_);
    for (Worker::State* worker : left_) worker->interrupt();
    wait(Deadline::in_ms(limits::interrupt_grace_ms));
  }
  look();  // what ended by itself is not killed
  for (Worker::State* worker : left_) worker->kill(SIGKILL);
  wait_for_the_dead();
}

void Closer::run() {
  std::exception_ptr interrupt;
  while (!left_.empty()) {
    try {
      run_stages();
      break;
    } catch (...) {
      if (!interrupt) interrupt = std::current_exception();
      if (begun_ == Closing::kill) break;  // they have been killed; the rest is the kernel's
      options_.how = begun_ == Closing::finish ? Closing::interrupt : Closing::kill;
    }
  }
  if (!options_.keeps_silent) abandon();
  if (interrupt) std::rethrow_exception(interrupt);
}

void Closer::abandon() {
  for (Worker::State* worker : std::exchange(left_, {})) worker->finish_closing();
}

void close_all(std::span<Worker* const> workers, Closing how) {
  CloseOptions options;
  options.how = how;
  Closer(workers, options).run();
}

}  // namespace miniray
