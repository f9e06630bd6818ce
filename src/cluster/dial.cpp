#include "cluster/dial.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

std::string outcome_of(int error) {
  return error == ECONNREFUSED ? "refused" : error == ETIMEDOUT ? "silent" : std::generic_category().message(error);
}

}  // namespace

Dial::Dial(const Value& to, int timeout_ms) : token_(to["token"].string()), until_(Deadline::in_ms(timeout_ms)) {
  try {
    socket_ =
        network::begin_connect(network::resolve(to["host"].string(), static_cast<int>(to["port"].integer())).front());
  } catch (const SystemError& error) {
    outcome_ = outcome_of(error.error_number());
  } catch (const UnknownHost&) {
    outcome_ = "unknown";
  }
}

pollfd Dial::interest() const {
  return {done() ? -1 : socket_.get(), static_cast<short>(connected_ ? POLLIN : POLLOUT), 0};
}

void Dial::end(std::string outcome) {
  outcome_ = std::move(outcome);
  socket_.reset();
}

void Dial::advance(bool ready) {
  if (done()) return;
  if (!ready) {
    if (until_.passed()) end(connected_ ? "mute" : "silent");
    return;
  }
  if (!connected_) {
    if (const int error = network::connect_error(socket_.get()); error != 0) return end(outcome_of(error));
    connected_ = true;
    return;
  }
  std::array<std::byte, limits::dial_token_bytes_max> room;
  const system::Transfer transfer = system::receive(socket_.get(), room, system::Block::no, nullptr);
  if (transfer.outcome == system::Transfer::Outcome::would_block) return;
  const bool moved = transfer.outcome == system::Transfer::Outcome::moved;
  if (moved) received_.append(reinterpret_cast<const char*>(room.data()), transfer.bytes);
  // Nothing follows the token, so longer data comes from another program.
  if (!moved || received_.size() >= token_.size()) end(received_ == token_ ? "" : "stranger");
}

void Dials::add(const List& to, int timeout_ms) {
  for (const Value& each : to) wanted_.emplace_back(each, timeout_ms);
  begin_more();
}

void Dials::begin_more() {
  while (active_.size() < limits::dials_max && begun_ < wanted_.size()) {
    Active& active = active_.emplace_back(Active{begun_, Dial(wanted_[begun_].first, wanted_[begun_].second)});
    ++begun_;
    if (!active.dial.done()) continue;  // it is under way; else it failed at once
    results_.emplace_back(active.number, active.dial.outcome());
    active_.pop_back();
  }
}

std::vector<pollfd> Dials::interests() const {
  std::vector<pollfd> all;
  for (const Active& active : active_) all.push_back(active.dial.interest());
  return all;
}

int Dials::poll_ms(int slice_ms) const {
  int least_ms = slice_ms;
  for (const Active& active : active_) least_ms = std::min(least_ms, active.dial.deadline().poll_ms(slice_ms));
  return least_ms;
}

void Dials::advance(const pollfd* watched) {
  for (std::size_t i = 0; i < active_.size(); ++i) {
    active_[i].dial.advance(watched[i].revents != 0);
    if (active_[i].dial.done()) results_.emplace_back(active_[i].number, active_[i].dial.outcome());
  }
  std::erase_if(active_, [](const Active& active) { return active.dial.done(); });
  begin_more();
}

std::vector<std::string> Dials::take() {
  std::ranges::sort(results_);  // by number: attempts end in any order
  std::vector<std::string> outcomes;
  for (auto& [number, outcome] : results_) outcomes.push_back(std::move(outcome));
  *this = {};
  return outcomes;
}

std::vector<std::string> dial_all(const List& to, int timeout_ms, const std::function<void()>& on_interrupt) {
  Dials dials;
  dials.add(to, timeout_ms);
  while (!dials.done()) {
    std::vector<pollfd> watched = dials.interests();
    (void)system::poll_many(watched, dials.poll_ms(limits::wait_slice_ms));
    if (on_interrupt) on_interrupt();
    dials.advance(watched.data());
  }
  return dials.take();
}

}  // namespace miniray
