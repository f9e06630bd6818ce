// Tests whether a node can be reached over TCP. A Dial connects to the port of a probe (probe.hpp) and reads the
// probe's token, which shows that it has reached the right one.
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "miniray/value.hpp"

namespace miniray {

/// One attempt. It never waits: the caller polls interest(), then calls advance().
class Dial {
 public:
  /// `to` has the "host", the "port" and the "token" of the probe to reach.
  Dial(const Value& to, int timeout_ms);

  [[nodiscard]] bool done() const { return outcome_.has_value(); }
  /// Returns the outcome; valid when done(). It is empty if the right probe answered. Else it is "refused", "silent"
  /// (no connection before the deadline), "mute" (connected, but no token before the deadline), "stranger" (a wrong
  /// token), "unknown" (the name has no address), or the system's error text.
  [[nodiscard]] const std::string& outcome() const { return *outcome_; }
  [[nodiscard]] pollfd interest() const;
  [[nodiscard]] const Deadline& deadline() const { return until_; }
  /// Does the next step. `ready` says whether poll reported the descriptor.
  void advance(bool ready);

 private:
  void end(std::string outcome);

  std::string token_, received_;
  Deadline until_;
  Fd socket_;
  bool connected_ = false;
  std::optional<std::string> outcome_;
};

/// Several attempts, of which at most limits::dials_max run at a time.
class Dials {
 public:
  void add(const List& to, int timeout_ms);
  [[nodiscard]] bool done() const { return results_.size() == wanted_.size(); }
  /// Returns the interests of the attempts under way.
  [[nodiscard]] std::vector<pollfd> interests() const;
  /// Returns the time until the first deadline of these attempts, at most slice_ms.
  [[nodiscard]] int poll_ms(int slice_ms) const;
  /// Advances the attempts with the results of a poll of interests(), and begins new ones in place of those that ended.
  void advance(const pollfd* watched);
  /// Returns the outcomes in the order of add(), and drops all attempts.
  [[nodiscard]] std::vector<std::string> take();

 private:
  void begin_more();

  struct Active {
    std::size_t number;
    Dial dial;
  };
  std::vector<std::pair<Value, int>> wanted_;
  std::vector<Active> active_;
  std::size_t begun_ = 0;
  std::vector<std::pair<std::size_t, std::string>> results_;
};

/// Makes all attempts from this process, waits for them, and returns their outcomes in the order of `to`.
[[nodiscard]] std::vector<std::string> dial_all(const List& to, int timeout_ms,
                                                const std::function<void()>& on_interrupt);

}  // namespace miniray
