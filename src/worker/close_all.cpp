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
      if (!worker->state_ || !worker->state_->is_ours())
        continue;  // it was moved from, or belongs to the parent process
      worker->state_->end();
      left_.push_back(&*worker->state_);
    } catch (const UsageError&) {  // another thread is using it
    }
  }
}

Closing Closer::how() const {
  return options_.urgency == nullptr ? options_.how : std::max(options_.how, options_.urgency->load());
}

// Finishes the workers that have ended. After idle_grace_ms, cuts off workers that still send messages.
void Closer::finish_ended() {
  const bool cut = cut_at_.passed();
  std::erase_if(left_, [&](Worker::State* worker) {
    if (!worker->has_closed(cut)) return false;
    worker->finish_closing();
    return true;
  });
}

void Closer::wait(const Deadline& deadline) {
  const Closing before = stage_;
  while (finish_ended(), !left_.empty() && !deadline.passed() && how() == before) {
    std::vector<pollfd> watched;
    for (Worker::State* worker : left_) worker->watch(watched);
    int slice_ms = options_.urgency == nullptr ? limits::wait_slice_ms : limits::urgency_slice_ms;
    if (!cut_at_.passed()) slice_ms = cut_at_.poll_ms(slice_ms);
    (void)system::poll_many(watched, deadline.poll_ms(slice_ms));
    if (!left_.empty() && left_.front()->on_interrupt()) left_.front()->on_interrupt()();
  }
}

// SIGKILL surely ends a process of this machine. The server of a worker on another machine may never confirm its end.
bool Closer::some_can_be_killed() const {
  return std::ranges::any_of(left_, [](Worker::State* worker) { return worker->process().can_be_killed(); });
}

Deadline Closer::news_deadline() const {
  int news_ms = 0;
  for (Worker::State* worker : left_)
    if (!worker->process().can_be_killed()) news_ms = std::max(news_ms, worker->process().news_within_ms());
  if (stage_ != Closing::finish) news_ms = std::min(news_ms, 2 * limits::interrupt_grace_ms);
  return Deadline::in_ms(options_.news_within_ms.value_or(news_ms));
}

void Closer::wait_for_killed() {
  const Deadline news = news_deadline();
  stage_ = how();
  while (!left_.empty() && (some_can_be_killed() || !news.passed()))
    wait(Deadline::in_ms(news.passed() ? limits::wait_slice_ms : news.poll_ms(limits::wait_slice_ms)));
}

bool Closer::step() {
  finish_ended();
  if (!left_.empty() && !news_until_) {
    for (Worker::State* worker : left_) worker->kill(SIGKILL);
    news_until_ = news_deadline();
  }
  if (!left_.empty() && !some_can_be_killed() && news_until_->passed()) drop_rest();
  return left_.empty();
}

void Closer::run_stages() {
  stage_ = how();
  if (stage_ == Closing::finish) {
    wait(Deadline::in_seconds(options_.grace_s));
    if (how() > stage_) return run_stages();  // another thread has raised the urgency
  }
  if (stage_ == Closing::interrupt) {
    wait(cut_at_);
    for (Worker::State* worker : left_) worker->interrupt();
    wait(Deadline::in_ms(limits::interrupt_grace_ms));
  }
  finish_ended();  // a worker that has ended by itself must not be killed, so that its end is reported
  for (Worker::State* worker : left_) worker->kill(SIGKILL);
  wait_for_killed();
}

void Closer::run() {
  std::exception_ptr interrupt;
  while (!left_.empty()) {
    try {
      run_stages();
      break;
    } catch (...) {
      if (!interrupt) interrupt = std::current_exception();
      if (stage_ == Closing::kill) break;  // the workers have been killed; there is nothing more to do
      options_.how = stage_ == Closing::finish ? Closing::interrupt : Closing::kill;
    }
  }
  if (!options_.keep_unconfirmed) drop_rest();
  if (interrupt) std::rethrow_exception(interrupt);
}

void Closer::drop_rest() {
  for (Worker::State* worker : std::exchange(left_, {})) worker->finish_closing();
}

void close_all(std::span<Worker* const> workers, Closing how) {
  CloseOptions options;
  options.how = how;
  Closer(workers, options).run();
}

}  // namespace miniray
