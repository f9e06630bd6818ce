// Logs the connections that a server refuses. Strangers decide how many these are, so the log shows the first ones of
// each minute, and counts the others: "refused 4,132 connections from 10.0.0.7 in the last minute".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace miniray {

class RefusalLog {
 public:
  /// `print` gets each line.
  explicit RefusalLog(std::function<void(const std::string& line)> print) : print_(std::move(print)) {}

  /// Logs that `peer` was refused, or counts it. `address` is what is counted: the Address::source() of the peer.
  void refused(const std::string& address, const std::string& peer, const std::string& why, std::int64_t now_ns);
  /// Prints the summary if the window is over. The server calls it at least once a second.
  void tick(std::int64_t now_ns);
  /// Prints the summary now, and begins a new window with the next refusal.
  void summarise(std::int64_t now_ns);

 private:
  struct Count {
    std::uint64_t refused = 0, shown = 0;
    std::string last_why;
  };

  std::function<void(const std::string&)> print_;
  std::map<std::string, Count> counts_;  // of the window; empty between windows
  Count others_;                         // of all addresses for which counts_ has no room
  std::int64_t began_ns_ = 0;
  std::size_t shown_ = 0;
};

}  // namespace miniray
