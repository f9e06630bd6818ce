// What was decided, and when: deaths, restarts, nodes that went and came. For programs to read, and for people.
//
//   for (const miniray::Event& event : log.events("worker_restarted")) ...
#pragma once

#include <cstddef>
#include <deque>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "miniray/export.hpp"
#include "miniray/limits.hpp"
#include "miniray/value.hpp"

namespace MINIRAY_API miniray {

struct Event {
  double time_s = 0;        ///< since 1970; no two events of a log have the same
  std::string kind = {};    ///< "worker_died", "node_back": docs/supervision.md lists them
  std::string node = {};    ///< empty if it is about none
  std::string worker = {};  ///< the same
  std::string text = {};    ///< for people
  Value details = {};       ///< for programs; null if there are none
  /// As write_to() writes it, without the end of the line.
  [[nodiscard]] std::string json() const;
};

/// Any thread may call it.
class EventLog {
 public:
  /// Of more events than this, the oldest are forgotten; a file keeps them all.
  explicit EventLog(std::size_t events_max = limits::events_max);
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  /// Sets its time. What goes wrong with the file is told on standard error, once, and not thrown.
  void add(Event event);
  /// In order; all, or those of this kind, or those after this time.
  [[nodiscard]] std::vector<Event> events(const std::optional<std::string>& kind = {},
                                          std::optional<double> since_s = {}) const;
  [[nodiscard]] std::size_t size() const;
  /// How many were ever added.
  [[nodiscard]] std::size_t added() const;
  /// How many were forgotten.
  [[nodiscard]] std::size_t forgotten() const;
  /// Appends those that are here, and those to come, to a file: one JSON text a line. Throws UsageError if it cannot be
  /// opened.
  void write_to(const std::string& path);

 private:
  void write(const Event& event);

  mutable std::mutex mutex_;
  std::size_t events_max_;
  std::deque<Event> events_;
  std::size_t forgotten_ = 0;
  double last_s_ = 0;
  std::string path_;
  std::ofstream file_;
};

}  // namespace miniray
