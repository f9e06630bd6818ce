// The last messages of one direction, for death certificates. Adding a message copies only its first bytes; text()
// makes them readable.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "channel/trace.hpp"
#include "miniray/limits.hpp"
#include "miniray/message.hpp"

namespace miniray {

class RecentMessages {
 public:
  void add(const Message& message) {
    Entry& entry = entries_[count_++ % entries_.size()];
    entry.kind = message.kind;
    entry.codec = message.codec;
    entry.number = message.head.number;
    entry.bytes = message.size();
    entry.kept = static_cast<std::uint32_t>(std::min(message.body.size(), entry.body.size()));
    std::memcpy(entry.body.data(), message.body.data(), entry.kept);
  }

  [[nodiscard]] std::string text(const char* direction) const {
    std::string text;
    const std::size_t first = count_ > entries_.size() ? count_ - entries_.size() : 0;
    for (std::size_t i = first; i < count_; ++i) {
      const Entry& entry = entries_[i % entries_.size()];
      text += "  " + std::string(direction) + " " + title(entry) +
              text_of(entry.codec, {entry.body.data(), entry.kept}) + " (" + std::to_string(entry.bytes) + " bytes)\n";
    }
    return text;
  }

 private:
  struct Entry {
    Message::Kind kind = Message::Kind::message;
    Codec codec = Codec::msgpack;
    std::int64_t number = 0;
    std::uint32_t kept = 0;
    std::uint64_t bytes = 0;
    std::array<char, limits::recent_message_bytes> body;
  };
  static std::string title(const Entry& entry) {
    const bool call = entry.kind == Message::Kind::call, reply = entry.kind == Message::Kind::reply;
    if (!call && !reply) return {};
    return (call ? "call " : "reply to call ") + std::to_string(entry.number) + ": ";
  }
  std::array<Entry, limits::recent_messages> entries_;
  std::size_t count_ = 0;
};

}  // namespace miniray
