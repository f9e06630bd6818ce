// What has arrived and was not yet asked for: plain messages and calls in lanes of their own, each in its order.
#pragma once

#include <cstdint>
#include <deque>

#include "miniray/channel.hpp"
#include "miniray/message.hpp"

namespace miniray {

class Inbox {
 public:
  void add(Message message) {
    bytes_ += message.size();
    lane_of(message).push_back({++arrived_, std::move(message)});
  }
  /// It is the next of its lane again, and of all.
  void put_back(Message message) {
    bytes_ += message.size();
    lane_of(message).push_front({0, std::move(message)});
  }
  [[nodiscard]] bool empty(Lane lane) const { return queue(lane).empty(); }
  [[nodiscard]] const Message& front(Lane lane) const { return queue(lane).front().message; }
  [[nodiscard]] Message take(Lane lane) {
    auto& from = const_cast<std::deque<Arrived>&>(queue(lane));
    Message message = std::move(from.front().message);
    from.pop_front();
    bytes_ -= message.size();
    return message;
  }
  void clear() {
    messages_.clear();
    calls_.clear();
    bytes_ = 0;
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// How many messages have come, ever.
  [[nodiscard]] std::uint64_t arrived() const { return arrived_; }
  /// The newest plain message, if there is one.
  [[nodiscard]] const Message* newest() const { return messages_.empty() ? nullptr : &messages_.back().message; }

 private:
  struct Arrived {
    std::uint64_t number;
    Message message;
  };
  [[nodiscard]] std::deque<Arrived>& lane_of(const Message& message) {
    const bool call = message.kind == Message::Kind::call || message.kind == Message::Kind::reply;
    return call ? calls_ : messages_;
  }
  [[nodiscard]] const std::deque<Arrived>& queue(Lane lane) const {
    if (lane != Lane::any) return lane == Lane::calls ? calls_ : messages_;
    if (calls_.empty() || messages_.empty()) return calls_.empty() ? messages_ : calls_;
    return calls_.front().number < messages_.front().number ? calls_ : messages_;
  }

  std::deque<Arrived> messages_, calls_;
  std::uint64_t arrived_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace miniray
