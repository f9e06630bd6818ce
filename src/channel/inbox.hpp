// Holds the messages that a channel has received and that its user has not taken yet. Each lane has a queue, in the
// order of arrival. All lanes count against one limit, and so do messages without a byte, because each takes memory.
#pragma once

#include <cstdint>
#include <deque>

#include "base/check.hpp"
#include "miniray/channel.hpp"
#include "miniray/limits.hpp"
#include "miniray/message.hpp"

namespace miniray {

class Inbox {
 public:
  void add(Message message) {
    count(message);
    lane_of(message).push_back({++arrived_, std::move(message)});
  }
  /// Counts a message that a receiver got without waiting in the inbox.
  void pass() { ++arrived_; }
  /// Puts a message in front of all others.
  void put_back(Message message) {
    count(message);
    lane_of(message).push_front({0, std::move(message)});
  }
  [[nodiscard]] bool empty(Lane lane) const { return queue(lane).empty(); }
  [[nodiscard]] bool empty() const { return messages_.empty() && calls_.empty(); }
  [[nodiscard]] const Message& front(Lane lane) const { return queue(lane).front().message; }
  [[nodiscard]] Message take(Lane lane) {
    auto& from = const_cast<std::deque<Arrived>&>(queue(lane));
    MINIRAY_CHECK(!from.empty(), lane);
    Message message = std::move(from.front().message);
    from.pop_front();
    const Weight weight = weight_of(message);
    MINIRAY_CHECK(bytes_ >= weight.bytes && descriptors_ >= weight.descriptors, bytes_, weight.bytes, descriptors_);
    bytes_ -= weight.bytes;
    descriptors_ -= weight.descriptors;
    return message;
  }
  void clear() {
    messages_.clear();
    calls_.clear();
    bytes_ = 0;
    descriptors_ = 0;
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_full(std::uint64_t bytes_max) const {
    return bytes_ >= bytes_max || descriptors_ >= limits::inbox_descriptors_max;
  }
  /// Returns how many messages were ever added.
  [[nodiscard]] std::uint64_t arrived() const { return arrived_; }
  /// Returns the newest message of Lane::messages, or nullptr.
  [[nodiscard]] const Message* newest() const { return messages_.empty() ? nullptr : &messages_.back().message; }

  /// Checks that every message is in its lane, in the order of arrival, and that bytes() is right.
  void check_invariants() const {
    Weight all;
    for (const std::deque<Arrived>* const lane : {&messages_, &calls_}) {
      std::uint64_t last = 0;
      for (const Arrived& each : *lane) {
        MINIRAY_CHECK(is_call(each.message) == (lane == &calls_), each.message.kind);
        MINIRAY_CHECK(each.number == 0 ? last == 0 : each.number > last, each.number, last);  // 0: was put back
        MINIRAY_CHECK(each.number <= arrived_, each.number, arrived_);
        last = each.number;
        all += weight_of(each.message);
      }
    }
    MINIRAY_CHECK(all.bytes == bytes_ && all.descriptors == descriptors_, all.bytes, bytes_, descriptors_);
  }

 private:
  struct Arrived {
    std::uint64_t number;
    Message message;
  };
  struct Weight {
    std::uint64_t bytes = 0;
    std::size_t descriptors = 0;
    void operator+=(const Weight& other) {
      bytes += other.bytes;
      descriptors += other.descriptors;
    }
  };
  [[nodiscard]] static Weight weight_of(const Message& message) {
    Weight weight{limits::inbox_message_bytes + message.body.size(), 0};
    for (const Buffer& buffer : message.buffers)
      weight += {limits::inbox_buffer_bytes + buffer.size, buffer.passed != nullptr ? std::size_t{1} : 0};
    return weight;
  }
  void count(const Message& message) {
    const Weight weight = weight_of(message);
    bytes_ += weight.bytes;
    descriptors_ += weight.descriptors;
  }
  [[nodiscard]] static bool is_call(const Message& message) {
    return message.kind == Message::Kind::call || message.kind == Message::Kind::reply;
  }
  [[nodiscard]] std::deque<Arrived>& lane_of(const Message& message) { return is_call(message) ? calls_ : messages_; }
  [[nodiscard]] const std::deque<Arrived>& queue(Lane lane) const {
    if (lane != Lane::any) return lane == Lane::calls ? calls_ : messages_;
    if (calls_.empty() || messages_.empty()) return calls_.empty() ? messages_ : calls_;
    return calls_.front().number < messages_.front().number ? calls_ : messages_;
  }

  std::deque<Arrived> messages_, calls_;
  std::uint64_t arrived_ = 0;
  std::uint64_t bytes_ = 0;
  std::size_t descriptors_ = 0;  // that the messages hold open
};

}  // namespace miniray
