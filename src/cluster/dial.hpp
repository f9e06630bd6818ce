// Whether a node can be reached over TCP: a Dial connects to where a probe listens, and reads from it whom it has
// reached.
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

/// One attempt. It never waits: poll its interest(), then advance() it.
class Dial {
 public:
  /// `to` has the "host", the "port", and the "token" of the probe that is meant.
  Dial(const Value& to, int timeout_ms);

  [[nodiscard]] bool over() const { return outcome_.has_value(); }
  /// Once it is over. Empty: the right one answered; else "refused", "silent", "stranger", "mute", or what the system
  /// says.
  [[nodiscard]] const std::string& outcome() const { return *outcome_; }
  [[nodiscard]] pollfd interest() const;
  [[nodiscard]] const Deadline& deadline() const { return until_; }
  /// Its descriptor is ready, or time has passed.
  void advance(bool ready);

 private:
  void end(std::string outcome);

  std::string token_, heard_;
  Deadline until_;
  Fd socket_;
  bool connected_ = false;
  std::optional<std::string> outcome_;
};

/// Several attempts, limits::dials_max of them at a time.
class Dials {
 public:
  void add(const List& to, int timeout_ms);
  [[nodiscard]] bool over() const { return results_.size() == wanted_.size(); }
  /// Of the attempts that are under way.
  [[nodiscard]] std::vector<pollfd> interests() const;
  [[nodiscard]] int poll_ms(int slice_ms) const;
  /// What poll said of the interests. Begins new attempts where others have ended.
  void advance(const pollfd* watched);
  /// The outcomes, in the order in which they were added. Afterwards there are none.
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

/// Makes all attempts from this process, and returns their outcomes in the order of `to`.
[[nodiscard]] std::vector<std::string> dial_all(const List& to, int timeout_ms,
                                                const std::function<void()>& on_interrupt);

}  // namespace miniray
