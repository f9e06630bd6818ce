#include "miniray/event_log.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/log.hpp"
#include "base/shown_text.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"

namespace miniray {
namespace {

constexpr double tick_s = 1e-6;  // the smallest difference that a double has at today's time

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string Event::json() const {
  return write_json({{"time", time_s},
                     {"kind", kind},
                     {"node", node},
                     {"worker", worker},
                     {"text", text},
                     {"details", details.is_null() ? Value(Map{}) : details}});
}

EventLog::EventLog(std::size_t events_max) : events_max_(events_max) {
  if (events_max == 0) throw UsageError("events_max is 0, but a log holds at least one event; give a larger number");
}
EventLog::~EventLog() = default;

void EventLog::add(Event event) {
  if (event.kind.empty()) throw UsageError("the kind of an event is empty; give it a word, such as worker_died");
  event.text = shown(event.text, Colours::escape);  // it may quote what a worker sent, and people print it
  const std::lock_guard lock(mutex_);
  last_s_ = event.time_s = std::max(wall_clock_s(), last_s_ + tick_s);  // in order, even if the clock goes backwards
  write(event);
  events_.push_back(std::move(event));
  if (events_.size() <= events_max_) return;
  events_.pop_front();
  ++forgotten_;
}

std::vector<Event> EventLog::events(const std::optional<std::string>& kind, std::optional<UnixTime> since_s) const {
  const std::lock_guard lock(mutex_);
  std::vector<Event> found;
  for (const Event& event : events_)
    if ((!kind || event.kind == *kind) && (!since_s || event.time_s > *since_s)) found.push_back(event);
  return found;
}

std::size_t EventLog::size() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

std::size_t EventLog::added() const {
  const std::lock_guard lock(mutex_);
  return forgotten_ + events_.size();
}

std::size_t EventLog::forgotten() const {
  const std::lock_guard lock(mutex_);
  return forgotten_;
}

void EventLog::write_to(const std::string& path) {
  const std::lock_guard lock(mutex_);
  auto file = std::make_unique<std::ofstream>(path, std::ios::app);
  if (!*file) throw UsageError("cannot write events to " + path + ": " + std::strerror(errno));
  file_ = std::move(file);
  path_ = path;
  for (const Event& event : events_) write(event);
}

// Writes and flushes each line at once, so that a program that follows the file sees whole lines without delay.
void EventLog::write(const Event& event) {
  if (file_ == nullptr) return;
  *file_ << event.json() + "\n" << std::flush;
  if (*file_) return;
  file_.reset();
  log(LogLevel::error, "no more events are written to " + path_ + ": " + std::strerror(errno));
}

}  // namespace miniray
