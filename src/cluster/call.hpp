// One call to a node that listens: connects, and hears from a probe there whom it has reached.
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

class Call {
 public:
  /// `to` has the "host", the "port", and the "token" of the probe that is meant.
  Call(const Value& to, int timeout_ms);

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

/// Several calls, as many at a time as is wise.
class Calls {
 public:
  void add(const List& to, int timeout_ms);
  [[nodiscard]] bool over() const { return results_.size() == wanted_.size(); }
  /// Those that are under way.
  [[nodiscard]] std::vector<pollfd> interests() const;
  [[nodiscard]] int poll_ms(int slice_ms) const;
  /// What poll said of the interests. Begins new calls where others have ended.
  void advance(const pollfd* watched);
  /// The outcomes, in the order in which they were added. Afterwards there are none.
  [[nodiscard]] std::vector<std::string> take();

 private:
  void begin_more();

  struct Active {
    std::size_t number;
    Call call;
  };
  std::vector<std::pair<Value, int>> wanted_;
  std::vector<Active> active_;
  std::size_t begun_ = 0;
  std::vector<std::pair<std::size_t, std::string>> results_;
};

/// From this process.
[[nodiscard]] std::vector<std::string> call_all(const List& to, int timeout_ms,
                                                const std::function<void()>& on_interrupt);

}  // namespace miniray
