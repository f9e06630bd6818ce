// A log of deaths, restarts, and nodes that were lost or came back, for programs and for people:
//
//   for (const miniray::Event& event : log.events("worker_restarted")) ...
#pragma once

#include <cstddef>
#include <deque>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "miniray/export.hpp"
#include "miniray/limits.hpp"
#include "miniray/seconds.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

struct Event {
  double time_s = 0;        ///< seconds since 1970; unique within a log
  std::string kind = {};    ///< "worker_died", "node_back": docs/supervision.md lists them
  std::string node = {};    ///< the node that the event is about; empty if there is none
  std::string worker = {};  ///< the worker that the event is about; empty if there is none
  std::string text = {};    ///< a sentence for people; a log escapes control characters in it (\x1b)
  Value details = {};       ///< more facts for programs; null if there are none
  /// Returns the event as write_to() writes it, without the end of the line.
  [[nodiscard]] std::string json() const;
};

/// Any thread may call a log.
class EventLog {
 public:
  /// Keeps events_max events in memory and drops the oldest ones. A file keeps all events.
  explicit EventLog(std::size_t events_max = limits::events_max);
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;
  ~EventLog();

  /// Adds an event and sets its time. If the file cannot be written, that is reported once on standard error; it is not
  /// thrown.
  void add(Event event);
  /// Returns the events in order: all, those of a kind, or those after a time, which may be a
  /// std::chrono::system_clock::time_point.
  [[nodiscard]] std::vector<Event> events(const std::optional<std::string>& kind = {},
                                          std::optional<UnixTime> since_s = {}) const;
  [[nodiscard]] std::size_t size() const;
  /// Returns how many events were added since the log was made.
  [[nodiscard]] std::size_t added() const;
  /// Returns how many events were dropped from memory.
  [[nodiscard]] std::size_t forgotten() const;
  /// Appends all events in memory, and all later ones, to a file: one JSON object per line. Throws UsageError if the
  /// file cannot be opened.
  void write_to(const std::string& path);

 private:
  void write(const Event& event);

  mutable std::mutex mutex_;
  std::size_t events_max_;
  std::deque<Event> events_;
  std::size_t forgotten_ = 0;
  double last_s_ = 0;
  std::string path_;
  std::unique_ptr<std::ofstream> file_;  // null until write_to() is called
};

}  // namespace miniray
